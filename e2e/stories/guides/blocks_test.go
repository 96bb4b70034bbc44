package guides

import (
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

// command is one of the programs that pages tell their readers to use, at a place where a shell takes it for one.
var command = regexp.MustCompile(`(?:^\s*(?:\$ )?(?:sudo )?|[|;&(] ?|exec POD -- )(kube-ipvs|ipvsadm|kubectl|helm|docker|podman|buildah|make|` +
	`ipset|iptables|ip6tables|nft|curl|go|sysctl|modprobe|jq|ln) `)

// TestEveryCommandIsRun or says why not; so does every block of settings, of which tests elsewhere read some.
func TestEveryCommandIsRun(t *testing.T) {
	run := 0
	for _, page := range pages(t) {
		for _, b := range page.Blocks {
			commands := b.Kind == "yaml" || b.Kind != "go" && slices.ContainsFunc(b.Text, command.MatchString)
			switch {
			case b.NotRun != "" && len(strings.Fields(b.NotRun)) < 3:
				t.Errorf("%s is not run, and %q is no reason", b, b.NotRun)
			case b.NotRun != "" && !commands && b.Kind != "console":
				t.Errorf("%s says why it is not run, and has no command", b)
			case b.NotRun == "" && b.Kind == "console":
				if _, err := b.Commands(); err != nil {
					t.Error(err)
				}
				run++
			case b.NotRun == "" && commands:
				t.Errorf("%s has commands, or settings, that no test runs: make it a console block, or say why: <!-- not run: WHY -->", b)
			}
		}
	}
	if run < 20 {
		t.Errorf("%d blocks are run: the pages are not read as they should be", run)
	}
}

// generated pages are written by tests of the package that owns their text.
var generated = []string{"docs/annotations.md", "docs/metrics.md", "docs/conformance.md", "docs/differences.md"}

// TestCommandsAreInBlocks: commands in an indented paragraph would escape the test above.
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
