package internal

import (
	"errors"
	"go/build"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kube-ipvs/kube-ipvs/"

// layer lists the imports allowed in a package, with the reason. All packages of the standard library are allowed
// except those in forbidden.
type layer struct {
	// ours are packages of this module; others are prefixes of other modules' packages.
	ours, others []string
	forbidden    []string
	// wires is true for packages that may import every package of this module.
	wires bool
	why   string
}

// impure lists packages of the standard library that do I/O, or whose results depend on more than their input.
var impure = []string{"context", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "os", "os/exec", "sync", "syscall", "time", "unsafe"}

var layers = map[string]layer{
	"inet":  {why: "types that both sides of the compiler share"},
	"model": {ours: []string{"inet"}, forbidden: without(impure, "time"), why: "values only; time.Time is a value"},
	"kernel": {
		ours: []string{"inet"}, forbidden: without(impure, "time", "syscall"),
		why: "values only: kernel state for readers and writers; time.Duration and syscall.Errno are values",
	},
	"want": {ours: []string{"inet", "kernel", "model"}, forbidden: without(impure, "time"), why: "pure (I2); time.Duration is a value"},
	"compile": {
		ours: []string{"inet", "kernel", "model", "view", "want"}, forbidden: impure,
		why: "pure (I2): uses no clock, Kubernetes types or backends",
	},
	"diff":    {ours: []string{"inet", "kernel", "want"}, forbidden: impure, why: "pure (I2): compares kernel states and does not depend on the cluster"},
	"bundle":  {ours: []string{"view"}, why: "runs parts within bounds, and writes an archive; independent of the agent and the kernel"},
	"finding": {forbidden: impure, why: "values only: the findings of preflight, status and doctor, and their text"},
	"inspect": {
		ours: []string{"diff", "finding", "inet", "kernel", "model", "view", "want"}, others: []string{"sigs.k8s.io/yaml"}, forbidden: impure, why: "pure: renders values",
	},
	"view": {
		ours: []string{"finding", "inet", "kernel", "model", "want"}, forbidden: without(impure, "time"),
		why: "values only: the agent's state and findings about it; time.Time is a value",
	},
	"explain": {ours: []string{"finding", "inet", "kernel", "model", "view"}, forbidden: impure, why: "pure: turns kernel state, view and question into steps"},
	"status": {
		ours: []string{"agent", "model", "rundir", "view"}, others: []string{"go.uber.org/zap"},
		why: "receives values from the loop and serves them to root",
	},
	"watch": {
		ours:   []string{"inet", "model"},
		others: []string{"k8s.io/", "go.uber.org/zap", "github.com/go-logr/", "golang.org/x/net/http2"},
		why:    sourceOnly,
	},
	"startuptaint": {ours: []string{"watch"}, others: []string{"k8s.io/"}, why: "one request to the API server; the daemon decides when"},
	"watch/manifests": {
		ours: []string{"model", "watch"}, others: []string{"k8s.io/", "sigs.k8s.io/yaml", "go.uber.org/zap", "github.com/fsnotify/fsnotify"},
		why: sourceOnly,
	},
	"agent": {
		ours: []string{"agent/contest", "agent/drain", "agent/flows", "agent/journal", "agent/known", "agent/quickcheck", "agent/schedule", "agent/slowstart", "agent/snapshot",
			"compile", "diff", "inet", "kernel", "model", "view", "want"},
		others: []string{"go.uber.org/zap"},
		why:    "the loop accesses sources and kernel through interfaces, so that tests can replace them",
	},
	"forward":         {others: []string{"golang.org/x/sys/unix"}, why: "copies bytes between sockets; independent of Services and kernel objects"},
	"forward/virtual": {ours: []string{"forward", "kernel"}, why: "translates values"},
	"localports": {
		ours: []string{"kernel", "model", "rundir"},
		why:  "receives ports from the loop's Reports, so that a sysctl or a file cannot delay the loop",
	},
	"iphelper": {
		ours: []string{"kernel"}, others: []string{"golang.org/x/sys/windows"},
		why: "changes addresses of Windows; kernel contains the values",
	},
	"loopback": {
		ours: []string{"compile", "forward", "inet", "model"},
		why:  "receives ports from the loop's Reports, so that serving them cannot delay the loop",
	},
	"userspace": {
		ours: []string{"agent", "compile", "finding", "forward", "forward/virtual", "inet", "kernel", "model", "view", "want"}, others: []string{"go.uber.org/zap"},
		why: "serves the wanted state without a kernel; agent contains the interface of sources and the known Problems",
	},
	"memory":           {others: []string{"go.uber.org/zap", "golang.org/x/sys/unix"}, why: "tunes the Go runtime; independent of Services"},
	"agent/contest":    {ours: []string{"inet", "kernel", "model"}, forbidden: without(impure, "time"), why: noClock},
	"agent/drain":      {ours: []string{"diff", "kernel", "want"}, forbidden: without(impure, "time"), why: noClock},
	"agent/flows":      {ours: []string{"inet", "kernel"}, forbidden: without(impure, "time"), why: noClock},
	"agent/journal":    {ours: []string{"view"}, forbidden: without(impure, "time"), why: noClock},
	"agent/known":      {ours: []string{"diff", "inet", "kernel", "model", "want"}, forbidden: without(impure, "time"), why: noClock},
	"agent/quickcheck": {ours: []string{"inet", "kernel"}, forbidden: without(impure, "time"), why: noClock},
	"agent/schedule":   {forbidden: without(impure, "time"), why: noClock},
	"agent/slowstart": {
		ours: []string{"compile", "kernel", "want"}, forbidden: without(impure, "time"), why: noClock,
	},
	"agent/snapshot": {
		ours:      []string{"agent/drain", "agent/slowstart", "compile", "kernel", "model", "view", "want"},
		forbidden: without(impure, "time"), why: "values only: the loop's results",
	},
	"config": {
		ours: []string{"compile", "forward", "inet", "kernel", "model"}, others: []string{"github.com/spf13/pflag", "go.yaml.in/yaml/v3"},
		why: "turns text into validated values",
	},
	"healthport": {
		ours: []string{"inet", "model"}, others: []string{"go.uber.org/zap"},
		why: "responds with the last values it received, so it does not depend on the kernel",
	},
	"telemetry": {
		ours:   []string{"agent", "forward", "healthport", "inet", "kernel", "model"},
		others: []string{"github.com/prometheus/client_golang/", "github.com/prometheus/client_model/", "k8s.io/", "go.uber.org/zap", "golang.org/x/sys/"},
		why:    "only observes: it receives Reports from the loop, and never reads the kernel or the sources",
	},
	"doctor": {
		ours: []string{"explain", "finding", "inet", "kernel", "model", "preflight", "view"}, others: []string{"go.yaml.in/yaml/v3"}, forbidden: without(impure, "time"),
		why: "pure: turns facts into findings; accesses the machine and the time through an interface",
	},
	"clidocs": {others: []string{"github.com/spf13/cobra", "github.com/spf13/pflag"}, forbidden: impure, why: "pure: turns commands into text"},
	"daemon": {
		ours: []string{"agent", "compile", "config", "diff", "finding", "inet", "iphelper", "kernel", "kernel/ipvs", "kernel/live", "kernel/sockets", "lastknown",
			"localports", "loopback", "forward", "memory", "model", "nodelock", "preflight", "startuptaint", "status", "telemetry", "userspace", "view", "want", "watch",
			"watch/manifests"},
		others: []string{"go.uber.org/zap", "golang.org/x/sync/errgroup", "golang.org/x/sys/", "k8s.io/client-go/rest"},
		why:    "connects the parts, for the program and for tests; makes no decisions",
	},
	"machine": {
		ours: []string{"agent", "bundle", "compile", "config", "daemon", "doctor", "explain", "finding", "inet", "inspect", "kernel", "kernel/conntrack",
			"kernel/foreign", "kernel/ipset", "kernel/iptables", "kernel/ipvs", "kernel/live", "kernel/netdev", "kernel/nft", "kernel/sockets", "nodelock", "preflight", "status",
			"view", "want"},
		others: []string{"go.uber.org/zap", "golang.org/x/sys/unix"},
		why:    "reads the state that commands show; commands are rare, so it opens backends on demand",
	},
	"lastknown": {ours: []string{"agent", "model"}, why: "one file, and the source that it records; the loop decides when to serve it"},
	"nodelock":  {ours: []string{"rundir"}, others: []string{"golang.org/x/sys/"}, why: "independent of the work that the lock protects"},
	"rundir":    {why: "a path, its permissions, and the process behind a socket"},
	"preflight": {
		ours:   []string{"finding", "inet", "kernel", "kernel/iptables", "kernel/netdev", "kernel/nft", "kernel/nlbatch", "kernel/sockets", "kernel/sockopt", "model", "userspace"},
		others: []string{"github.com/vishvananda/", "golang.org/x/sys/"},
		why:    "checks the machine; makes no decisions for the loop",
	},
	"kernel/nlbatch":   backend("golang.org/x/sys/", "github.com/vishvananda/"),
	"kernel/sockopt":   {ours: []string{"inet"}, others: []string{"golang.org/x/sys/unix"}, why: "system calls only"},
	"kernel/ipvs":      backend("golang.org/x/sys/", "github.com/vishvananda/", "github.com/moby/ipvs", "github.com/sirupsen/logrus"),
	"kernel/foreign":   readsNFTables("golang.org/x/sys/"),
	"kernel/ipset":     backend("golang.org/x/sys/", "github.com/vishvananda/"),
	"kernel/netdev":    backend("golang.org/x/sys/", "github.com/vishvananda/"),
	"kernel/conntrack": backend("golang.org/x/sys/"),
	"kernel/iptables":  readsNFTables("golang.org/x/sys/", "github.com/coreos/go-iptables/"),
	"kernel/nft/wire":  backend("golang.org/x/sys/"),
	"kernel/nft": {
		ours:   []string{"inet", "kernel", "kernel/nft/balance", "kernel/nft/wire", "kernel/nlbatch"},
		others: []string{"golang.org/x/sys/"}, why: "jumps to balancing",
	},
	"kernel/nft/balance": {ours: []string{"inet", "kernel", "kernel/nft/wire", "kernel/nlbatch"}, others: []string{"golang.org/x/sys/"}, why: "balancing is independent of rules"},
	"ipvsadm":            {ours: []string{"inet", "kernel"}, forbidden: impure, why: "pure: parses requests and prints values"},
	"ipvsadm/command":    {ours: []string{"ipvsadm", "kernel", "kernel/ipvs"}, why: "reads the kernel state that the command lines of ipvsadm show"},
	"kernel/sockets": {
		ours: []string{"forward", "forward/virtual", "inet", "kernel", "kernel/netdev", "kernel/ownthread"}, others: []string{"github.com/vishvananda/", "golang.org/x/sys/unix"},
		why: "virtual servers as listeners, sets that decide which clients they admit, and the namespace in which they listen",
	},
	"kernel/ownthread": {others: []string{"golang.org/x/sys/unix"}, why: "a thread, and nothing else"},
	"kernel/live": {
		ours: []string{"inet", "kernel", "kernel/conntrack", "kernel/ipset", "kernel/iptables", "kernel/ipvs", "kernel/netdev", "kernel/nft",
			"kernel/nft/balance", "kernel/nft/wire", "kernel/nlbatch", "kernel/ownthread", "kernel/sockopt"},
		others: []string{"golang.org/x/sys/unix"},
		why:    "combines the backends",
	},
	"fleet": {ours: []string{"explain", "finding", "inspect", "view"}, forbidden: impure, why: "pure: merges the nodes' answers into one report"},
	"ui":    {why: "serves the page and passes questions on; independent of what nodes answer"},
	"ui/node": {
		ours: []string{"doctor", "explain", "finding", "inspect", "kernel", "ui", "view"},
		why:  "joins views and counters into answers; reads them through functions",
	},
	"fleet/pods": {
		ours: []string{"fleet"}, others: []string{"golang.org/x/sync/errgroup", "k8s.io/"},
		why: "queries nodes through the API server; runs on any operating system",
	},
	"../cmd/kubectl-ipvs": {
		ours: []string{"fleet", "fleet/pods", "inspect", "ui"}, others: []string{"github.com/spf13/", "k8s.io/client-go/tools/clientcmd"},
		why: "runs on any operating system, without the agent",
	},
	"../cmd/kube-ipvs": {
		wires: true, why: "the only package that may import every other package",
		others: []string{"github.com/spf13/", "golang.org/x/term"},
	},
}

const noClock = "a part of the loop that uses no I/O and no clock: the loop passes in the current time"

const sourceOnly = "I1: sources do not know how the agent uses their objects"

func backend(others ...string) layer {
	return layer{ours: []string{"inet", "kernel", "kernel/nlbatch", "kernel/sockopt"}, others: others, why: "a backend only reads and writes, so it does not use the model"}
}

// readsNFTables is a backend that reads the objects of other programs in nftables. wire decodes the kernel's messages about all tables.
func readsNFTables(others ...string) layer {
	l := backend(others...)
	l.ours = append(l.ours, "kernel/nft/wire")
	return l
}

func without(list []string, drop ...string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(drop, s) })
}

// testOnly packages may import anything. No other package may import them.
var testOnly = []string{"compile/compiletest", "diff/difftest", "freeport", "goldentest", "kernel/kerneltest", "kernel/labtest", "userspace/shop", "watch/watchtest"}

func TestImports(t *testing.T) {
	for _, pkg := range packages(t) {
		if slices.Contains(testOnly, pkg.name) {
			continue
		}
		rule, ok := layers[pkg.name]
		if !ok {
			t.Errorf("internal/%s has no entry in layers; add its allowed imports and the reason", pkg.name)
			continue
		}
		for _, imported := range pkg.imports {
			if !rule.allows(imported) {
				t.Errorf("internal/%s must not import %s: %s", pkg.name, imported, rule.why)
			}
		}
	}
}

func (l layer) allows(path string) bool {
	if ours, ok := strings.CutPrefix(path, module+"internal/"); ok {
		return slices.Contains(l.ours, ours) || l.wires && !slices.Contains(testOnly, ours)
	}
	if !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") {
		return !slices.Contains(l.forbidden, path)
	}
	return slices.ContainsFunc(l.others, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

// TestLayersExist fails if layers names a package that was removed or renamed.
func TestLayersExist(t *testing.T) {
	exists := map[string]bool{}
	for _, pkg := range packages(t) {
		exists[pkg.name] = true
	}
	named := slices.Clone(testOnly)
	for name, rule := range layers {
		named = append(named, name)
		named = append(named, rule.ours...)
	}
	slices.Sort(named)
	for _, name := range slices.Compact(named) {
		if !exists[name] {
			t.Errorf("layers names internal/%s, which does not exist", name)
		}
	}
}

func TestPackageDocs(t *testing.T) {
	for _, pkg := range packages(t) {
		if pkg.doc == "" {
			t.Errorf("internal/%s has no package comment", pkg.name)
		}
	}
}

type goPackage struct {
	name    string
	doc     string
	imports []string
}

// packages lists the packages below internal and cmd, with their paths relative to internal.
func packages(t *testing.T) []goPackage {
	t.Helper()
	return append(packagesBelow(t, "."), packagesBelow(t, "../cmd")...)
}

func packagesBelow(t *testing.T, root string) []goPackage {
	t.Helper()
	var all []goPackage
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() == "testdata" {
			return err
		}
		p, err := build.ImportDir(path, 0)
		var noGo *build.NoGoError
		if errors.As(err, &noGo) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(p.GoFiles) > 0 {
			all = append(all, goPackage{filepath.ToSlash(path), p.Doc, p.Imports})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
