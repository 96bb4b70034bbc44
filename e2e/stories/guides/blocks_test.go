package guides

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

func pages(t *testing.T) []Page {
	t.Helper()
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	all, err := Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var command = regexp.MustCompile(`(?:^\s*(?:\$ )?(?:sudo )?|[|;&(] ?|exec POD -- )(kube-ipvs|ipvsadm|kubectl|helm|docker|podman|buildah|make|` +
	`ipset|iptables|ip6tables|nft|curl|go|sysctl|modprobe|jq|ln) `)

// TestEveryCommandIsRun requires that each block of commands or settings is run, or has a comment with a reason.
func TestEveryCommandIsRun(t *testing.T) {
	run := 0
	for _, page := range pages(t) {
		for _, b := range page.Blocks {
			if b.NotRun == "" && b.Kind == "console" {
				run++
			}
			if err := runOrExcused(b); err != nil {
				t.Error(err)
			}
		}
	}
	if run < 20 {
		t.Errorf("only %d blocks are run; the parser misses some", run)
	}
}

func runOrExcused(b Block) error {
	commands := b.Kind == "yaml" || b.Kind != "go" && slices.ContainsFunc(b.Text, command.MatchString)
	switch {
	case b.NotRun != "" && len(strings.Fields(b.NotRun)) < 3:
		return fmt.Errorf("%s is not run, and %q does not explain why", b, b.NotRun)
	case b.NotRun != "" && !commands && b.Kind != "console":
		return fmt.Errorf("%s gives a reason for not being run, but has no command", b)
	case b.NotRun == "" && b.Kind == "console":
		_, err := b.Commands()
		return err
	case b.NotRun == "" && commands:
		return fmt.Errorf("%s has commands or settings that no test runs: make it a console block, or add <!-- not run: WHY -->", b)
	}
	return nil
}

// generated lists the pages that other packages' tests generate.
var generated = []string{"docs/annotations.md", "docs/metrics.md", "docs/conformance.md", "docs/differences.md"}

// TestCommandsAreInBlocks finds commands in indented paragraphs, which TestEveryCommandIsRun misses.
func TestCommandsAreInBlocks(t *testing.T) {
	for _, page := range pages(t) {
		if slices.Contains(generated, page.Name) {
			continue
		}
		inside := false
		for i, line := range page.Lines {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				inside = !inside
			case !inside && strings.HasPrefix(line, "    ") && command.MatchString(line):
				t.Errorf("%s:%d: a command in an indented paragraph; use a fenced block: %s", page.Name, i+1, strings.TrimSpace(line))
			}
		}
	}
}
