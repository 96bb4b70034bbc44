package finding

import (
	"os/exec"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	found := []Finding{
		New(Notice, "rules", "in nftables", nil, "nothing to do"),
		New(Warning, "configuration", "not usable", []string{"line 3: boom\nline 4: bang", "c.yaml"}, "correct c.yaml"),
		New(Broken, "agent", "not running", nil, "start it"),
	}
	Sort(found)
	var printed strings.Builder
	if err := Print(&printed, found); err != nil {
		t.Fatal(err)
	}
	const want = `broken   agent: not running
         remedy: start it
warning  configuration: not usable
         | line 3: boom
         | line 4: bang
         | c.yaml
         remedy: correct c.yaml
notice   rules: in nftables
         remedy: nothing to do
`
	if printed.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", &printed, want)
	}
	if got := found[0].String(); got != "agent: not running; start it" {
		t.Errorf("String returns %q", got)
	}
	if got := found[1].Summary(); got != "configuration: not usable: line 3: boom; line 4: bang; c.yaml" {
		t.Errorf("Summary returns %q", got)
	}
}

// TestWord: a shell reads a quoted name as one word, whatever it contains.
func TestWord(t *testing.T) {
	for _, name := range []string{"", "eth0", "input filter", "it's", "$(reboot)", "`reboot`", "a;b", "a\nb", `"`, `\`, "*", "-x"} {
		out, err := exec.Command("sh", "-c", "printf %s "+Word(name)).Output()
		if err != nil || string(out) != name {
			t.Errorf("%q: %s is %q, %v", name, Word(name), out, err)
		}
	}
	if got := Word("net/ipv4/conf/eth0.1/rp_filter=2"); got != "net/ipv4/conf/eth0.1/rp_filter=2" {
		t.Error(got)
	}
}
