package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

// docs/configuration.md is generated from the tables of this package.
func TestDocs(t *testing.T) {
	files := strings.Replace(docsFiles, "VERSIONS", readKubeProxyFields(t).sentence(), 1)
	goldentest.Compare(t, "../../docs/configuration.md", docsHead+settingsTable()+files+translationsTable()+docsWithout+inapplicablesTable()+docsTail)
}

// The example file in the documentation is valid and has the intended effect.
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
		shared := ""
		if row.kubeProxy != otherField {
			shared = "same"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", code(row.path), code("--"+row.flag), shared, code(row.byDefault), row.applies, row.meaning)
	}
	return b.String()
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

// Names are unique, and defaults are valid. With four exceptions, settings that affect the wanted state take effect
// immediately.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	once := func(name string) {
		if seen[name] && name != "" {
			t.Errorf("%s appears twice", name)
		}
		seen[name] = true
	}
	for _, row := range table {
		once("ours " + row.path)
		once("--" + row.flag)
		if row.kubeProxy != otherField {
			once("kube-proxy's " + row.path)
		}
		if row.meaning == "" || row.applies == "" {
			t.Errorf("%s has no description, or does not say when a change takes effect", row.path)
		}
		if row.planning && row.applies == afterRestart && !slices.Contains([]string{"hostnameOverride", "serviceProxyName", "dataPlane", "rules"}, row.path) {
			t.Errorf("%s affects the wanted state but needs a restart", row.path)
		}
	}
	for _, x := range translations {
		if x.field != "" {
			once("kube-proxy's " + x.field)
		}
		once("--" + x.flag)
	}
	for _, x := range inapplicables {
		if x.field != "" {
			once("kube-proxy's " + x.field)
		}
		if x.flag != "" {
			once("--" + x.flag)
		}
	}
	newLoading() // panics if a default is invalid
}
