package compile_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

var update = flag.Bool("update", false, "write what was compiled into the golden files")

// Every file in testdata is one feature: manifests in, and what they ask of the kernel out. The parts of a file are
//
//	manifests.yaml   Services and EndpointSlices
//	config           settings, one per line (see settings); a file may go without
//	services         what each Service port asks for
//	problems         what is wrong with which object; missing when nothing is
//	base             the part that does not depend on any Service; only compared in files that have it
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { golden(t, file) })
	}
}

func golden(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	in := parts(archive)
	cluster, problems := compileYAML(t, in["manifests.yaml"], parseConfig(t, in["config"]))
	have := &txtar.Archive{Comment: archive.Comment}
	for _, name := range []string{"config", "manifests.yaml"} {
		if in[name] != "" {
			add(have, name, in[name])
		}
	}
	var services, base strings.Builder
	inspect.Services(&services, cluster.Want())
	add(have, "services", services.String())
	if problems != "" {
		add(have, "problems", problems)
	}
	if _, ok := in["base"]; ok {
		inspect.Base(&base, cluster.Want().Base)
		add(have, "base", base.String())
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(have), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(have))); d != "" {
		t.Errorf("-want +have (go test -update writes it):\n%s", d)
	}
}

func parts(archive *txtar.Archive) map[string]string {
	all := map[string]string{}
	for _, f := range archive.Files {
		all[f.Name] = string(f.Data)
	}
	return all
}

func add(archive *txtar.Archive, name, text string) {
	archive.Files = append(archive.Files, txtar.File{Name: name, Data: []byte(text)})
}

// compileYAML compiles manifests as a node would that reads them.
func compileYAML(t *testing.T, manifests string, cfg compile.Config) (*compile.Cluster, string) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "manifests.yaml"), []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
	services, unreadable, err := watch.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[model.ServiceID]*model.Service{}
	for _, svc := range services {
		all[svc.ID] = svc
	}
	cluster := compile.NewCluster(cfg)
	ids := cluster.Update(all, want.NewTouched())
	var text strings.Builder
	for _, p := range unreadable { // the words are the watch package's
		fmt.Fprintf(&text, "%s: %s %q: found while reading\n", p.Object, p.Field, p.Value)
	}
	for _, id := range ids {
		for _, p := range cluster.Problems(id) {
			fmt.Fprintf(&text, "%s\n", p)
		}
	}
	return cluster, text.String()
}

func parseConfig(t *testing.T, text string) compile.Config {
	cfg := compiletest.Config()
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		set, ok := settings[name]
		if !ok {
			t.Fatalf("config: unknown setting %q", name)
		}
		set(&cfg, value)
	}
	return cfg
}

// settings that a golden file may change.
var settings = map[string]func(*compile.Config, string){
	"node":          func(c *compile.Config, v string) { c.Node = v },
	"scheduler":     func(c *compile.Config, v string) { c.Scheduler = v },
	"masqueradeAll": func(c *compile.Config, v string) { c.MasqueradeAll = v == "true" },
	"masqueradeBit": func(c *compile.Config, v string) { fmt.Sscan(v, &c.MasqueradeBit) },
	"randomFully":   func(c *compile.Config, v string) { c.RandomFully = v == "true" },
	"bridge":        func(c *compile.Config, v string) { c.Local = compile.LocalDetector{Bridge: v} },
	"interfaces":    func(c *compile.Config, v string) { c.Local = compile.LocalDetector{InterfacePrefix: v} },
	"noLocal":       func(c *compile.Config, _ string) { c.Local = compile.LocalDetector{} },
	"families": func(c *compile.Config, v string) {
		c.Families = slices.DeleteFunc(slices.Clone(inet.Families), func(f inet.Family) bool { return f.String() != v })
	},
	"clusterCIDRs": func(c *compile.Config, v string) {
		c.Local = compile.LocalDetector{}
		for _, cidr := range strings.Fields(v) {
			c.Local.CIDRs = append(c.Local.CIDRs, netip.MustParsePrefix(cidr))
		}
	},
}
