package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/manifests"
)

// Every file in testdata shows one feature: manifests as input, and the wanted kernel state as output. The parts of a file are
//
//	manifests.yaml   Services, EndpointSlices and Nodes
//	config           settings, one per line (see settings); optional
//	services         what each Service port asks for
//	health           the health check ports; missing if there are none
//	problems         the Problems; missing if there are none
//	base             the part that does not depend on Services; compared only in files that contain it
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
	cluster, health, problems := compileYAML(t, in["manifests.yaml"], parseConfig(t, in["config"]))
	have := &txtar.Archive{Comment: archive.Comment}
	for _, name := range []string{"config", "manifests.yaml"} {
		if in[name] != "" {
			add(have, name, in[name])
		}
	}
	var services, base strings.Builder
	inspect.Services(&services, cluster.Want())
	add(have, "services", services.String())
	if health != "" {
		add(have, "health", health)
	}
	if problems != "" {
		add(have, "problems", problems)
	}
	if _, ok := in["base"]; ok {
		inspect.Base(&base, cluster.Want().Base)
		add(have, "base", base.String())
	}
	goldentest.Compare(t, file, string(txtar.Format(have)))
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

func compileYAML(t *testing.T, objects string, cfg setup) (cluster *compile.Cluster, health, problems string) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "manifests.yaml"), []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	changes, err := manifests.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	cluster = compile.NewCluster(cfg.Config)
	cluster.SetListeners(nil, want.NewTouched())
	cluster.SetAddresses(cfg.addresses, want.NewTouched())
	for _, v := range cfg.versions {
		cluster.SetVersion(v, want.NewTouched())
	}
	cluster.UpdateNodes(changes.Nodes, want.NewTouched())
	ids := cluster.Update(changes.Services, want.NewTouched())
	var text, ports strings.Builder
	for _, object := range slices.SortedFunc(maps.Keys(changes.Problems), model.ObjectRef.Compare) {
		for _, p := range changes.Problems[object] { // the tests of package watch check these texts
			fmt.Fprintf(&text, "%s: %s %q: found while reading\n", p.Object, p.Field, p.Value)
		}
	}
	for _, id := range ids {
		if h := cluster.HealthPort(id); h.Port != 0 {
			fmt.Fprintf(&ports, "%s: port %d, %d endpoints on this node\n", id, h.Port, h.Local)
		}
		for _, p := range cluster.Problems(id) {
			fmt.Fprintf(&text, "%s\n", p)
		}
	}
	return cluster, ports.String(), text.String()
}

type setup struct {
	compile.Config
	addresses []netip.Addr
	versions  []model.Version
}

func parseConfig(t *testing.T, text string) setup {
	cfg := setup{Config: compiletest.Config()}
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

var settings = map[string]func(*setup, string){
	"node":          func(c *setup, v string) { c.NodeName = v },
	"scheduler":     func(c *setup, v string) { c.Scheduler = v },
	"masqueradeAll": func(c *setup, v string) { c.MasqueradeAll = v == "true" },
	"masqueradeBit": func(c *setup, v string) { c.MasqueradeBit = bit(v) },
	"bridge":        func(c *setup, v string) { c.Local = compile.LocalDetector{Bridge: v} },
	"interfaces":    func(c *setup, v string) { c.Local = compile.LocalDetector{InterfacePrefix: v} },
	"noLocal":       func(c *setup, _ string) { c.Local = compile.LocalDetector{} },
	"families": func(c *setup, v string) {
		c.Families = slices.DeleteFunc(slices.Clone(inet.Families), func(f inet.Family) bool { return f.String() != v })
	},
	"clusterCIDRs": func(c *setup, v string) { c.Local = compile.LocalDetector{CIDRs: prefixes(v)} },
	"addresses": func(c *setup, v string) {
		for _, a := range strings.Fields(v) {
			c.addresses = append(c.addresses, netip.MustParseAddr(a))
		}
	},
	// nodePortAddresses is a list of keywords and ranges
	"nodePortAddresses": func(c *setup, v string) { c.NodePorts = nodePorts(v) },
	// externalIPs is "off", "auto" or the allowed ranges
	"externalIPs": func(c *setup, v string) {
		c.ExternalIPs.Off, c.ExternalIPs.ByVersion = v == "off", v == "auto"
		if !c.ExternalIPs.Off && !c.ExternalIPs.ByVersion {
			c.ExternalIPs.Allowed = prefixes(v)
		}
	},
	// minor versions of the API server, in the order in which the agent learns them
	"kubernetes": func(c *setup, v string) {
		for _, minor := range strings.Fields(v) {
			n, _ := strconv.Atoi(minor)
			c.versions = append(c.versions, model.Version{Major: 1, Minor: n})
		}
	},
	"excludeCIDRs": func(c *setup, v string) { c.Excluded = prefixes(v) },
	// the ranges to which egress is not masqueraded
	"egress":          func(c *setup, v string) { c.Egress = compile.Egress{Masquerade: true, Except: prefixes(v)} },
	"balancing":       func(c *setup, v string) { c.Mode = map[string]kernel.Mode{"true": kernel.NFTablesOnly}[v] },
	"nftables":        func(c *setup, v string) { c.Mode = map[string]kernel.Mode{"true": kernel.IPVSWithNFTables}[v] },
	"side-by-side":    func(c *setup, v string) { c.SideBySide = v == "true" },
	"acceptServices":  func(c *setup, v string) { c.AcceptServices = v == "true" },
	"strictARP":       func(c *setup, v string) { c.StrictARP = v == "true" },
	"stopCounters":    func(c *setup, v string) { c.StopCounters = v == "true" },
	"localByNodeCIDR": func(c *setup, v string) { c.LocalByNodeCIDR = v == "true" },
	// timeouts of TCP, TCP after FIN, and UDP
	"timeouts": func(c *setup, v string) {
		for i, t := range []*time.Duration{&c.Timeouts.TCP, &c.Timeouts.TCPFin, &c.Timeouts.UDP} {
			*t, _ = time.ParseDuration(strings.Fields(v)[i])
		}
	},
}

func bit(text string) uint8 {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		panic(err)
	}
	return uint8(n)
}

func nodePorts(words string) (n compile.NodePortAddresses) {
	for _, word := range strings.Fields(words) {
		switch word {
		case "all":
			n.All = true
		case "primary":
			n.Primary = true
		case "localhost":
			n.Localhost = true
		default:
			n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(word))
		}
	}
	return n
}

func prefixes(text string) []netip.Prefix {
	var list []netip.Prefix
	for _, cidr := range strings.Fields(text) {
		list = append(list, netip.MustParsePrefix(cidr))
	}
	return list
}
