package judge

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed introduction.md
var introduction string

// Document renders docs/differences.md.
func Document() string {
	var b strings.Builder
	b.WriteString(introduction)
	for _, r := range Rules {
		fmt.Fprintf(&b, "\n### %s\n\n", r.ID)
		fmt.Fprintf(&b, "| | |\n|---|---|\n")
		row := func(name, text string) {
			if text != "" {
				fmt.Fprintf(&b, "| %s | %s |\n", name, text)
			}
		}
		row("when", r.When)
		row("kube-proxy", r.KubeProxy)
		row("kube-ipvs", r.Ours)
		row("why", r.Why)
		row("fixes", issues(r.Fixes))
		row("seen in", kinds(r.Kinds))
		row("how often", r.often())
	}
	return b.String()
}

func issues(numbers []int) string {
	var list []string
	for _, n := range numbers {
		list = append(list, fmt.Sprintf("[kubernetes/kubernetes#%d](https://github.com/kubernetes/kubernetes/issues/%d)", n, n))
	}
	return strings.Join(list, ", ")
}

func kinds(list []Kind) string {
	var names []string
	for _, k := range list {
		names = append(names, string(k)+"s")
	}
	names[len(names)-1] = strings.Replace(names[len(names)-1], "addresss", "addresses", 1)
	return strings.Join(names, ", ")
}

func (r Rule) often() string {
	how := "sometimes when"
	if r.Always {
		how = "whenever"
	}
	return fmt.Sprintf("%s the condition holds (in at most %.0f%% of cases)", how, 100*r.AtMost)
}
