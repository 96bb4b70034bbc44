package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

// TestDocs: docs/configuration.md is made from the tables that the program uses.
func TestDocs(t *testing.T) {
	goldentest.Compare(t, "../../docs/configuration.md", docsHead+settingsTable()+docsFiles+translationsTable()+docsWithout+inapplicablesTable()+docsTail)
}

// TestDocsExample: the file that the page shows is valid, and sets what it names.
func TestDocsExample(t *testing.T) {
	_, rest, _ := strings.Cut(docsFiles, "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	f := parse(t)
	f.File = "kube-ipvs.yaml"
	l, err := f.load([]byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if l.Scheduler != "wlc" || l.DrainTimeout != 5*time.Minute || len(l.ClusterCIDRs) != 2 {
		t.Errorf("%+v", l.Settings)
	}
}

func settingsTable() string {
	var b strings.Builder
	for _, row := range table {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", code(row.path), code("--"+row.flag), theirName(row), code(row.usual), row.when, row.meaning)
	}
	return b.String()
}

// theirName is empty where the field has our name.
func theirName(row setting) string {
	switch row.theirs.path {
	case row.path:
		return "the same"
	case "":
		return ""
	}
	return code(row.theirs.path)
}

func translationsTable() string {
	var b strings.Builder
	for _, t := range translations {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", code(t.field), code("--"+t.flag), t.ours)
	}
	return b.String()
}

func inapplicablesTable() string {
	var b strings.Builder
	for _, i := range inapplicables {
		flag := ""
		if i.flag != "" {
			flag = "--" + i.flag
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", code(i.field), code(flag), i.why)
	}
	return b.String()
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// TestTable: names are used once, what is shown as the default is how the value prints, and planning settings come into force
// at once because they are part of the wanted state.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	once := func(name string) {
		if seen[name] && name != "" {
			t.Errorf("%s is used twice", name)
		}
		seen[name] = true
	}
	for _, row := range table {
		once("ours " + row.path)
		once("--" + row.flag)
		if row.theirs.path != "" {
			once("theirs " + row.theirs.path)
		}
		if row.meaning == "" || row.when == "" {
			t.Errorf("%s has no meaning, or does not say when a change takes effect", row.path)
		}
		if row.planning && row.when == restart && !slices.Contains([]string{"hostnameOverride", "serviceProxyName"}, row.path) {
			t.Errorf("%s decides the wanted state and yet waits for a restart", row.path)
		}
	}
	for _, x := range translations {
		if x.field != "" {
			once("theirs " + x.field)
		}
		once("--" + x.flag)
	}
	for _, x := range inapplicables {
		if x.field != "" {
			once("theirs " + x.field)
		}
		if x.flag != "" {
			once("--" + x.flag)
		}
	}
	newLoading() // panics where a default is wrong
}
