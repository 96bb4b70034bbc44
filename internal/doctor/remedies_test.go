package doctor

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEveryCommandHasAStory: each command in a remedy has a story that runs it on the defect that it repairs. No
// command contains a placeholder.
func TestEveryCommandHasAStory(t *testing.T) {
	stories, err := os.ReadFile("../../e2e/stories/host/remedies_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range breakages {
		n := well()
		b.spoil(t, n)
		n.Read(n)
		for _, f := range Examine(n.Facts).Findings {
			for _, command := range f.Commands() {
				if !strings.Contains(string(stories), fmt.Sprintf("finding: %q", f.Subject)) && len(n.Preflight) == 0 {
					t.Errorf("%s: no story runs %q", f.Subject, command)
				}
				if placeholder.MatchString(command) {
					t.Errorf("%s: the command %q contains a placeholder", f.Subject, command)
				}
			}
			rest := f.Remedy
			for _, command := range f.Commands() {
				rest = strings.ReplaceAll(rest, "run `"+command+"`", "")
			}
			if beginning.MatchString(rest) {
				t.Errorf("%s: the remedy does not write commands as run `COMMAND`: %q", f.Subject, f.Remedy)
			}
		}
	}
}

var (
	placeholder = regexp.MustCompile(`\b(VALUE|ADDRESS|INTERFACE|NAME|NODE)\b`)
	// beginning matches the start of a command that is not in backquotes.
	beginning = regexp.MustCompile(`\b(sysctl -w|ip addr|ipvsadm -[A-Z]|iptables -|nft [a-z]+ |echo |modprobe )`)
)
