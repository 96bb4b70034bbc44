//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/localports"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// printedForms runs a command in each output format. It compares the text and the JSON with golden files, and the YAML
// with the JSON.
func printedForms(t *testing.T, s *stage, name string, want int, args ...string) {
	t.Helper()
	printed := map[string]string{}
	for _, form := range textForms {
		out, _, status := s.call(t, append(slices.Clone(args), "-o", form)...)
		if status != want {
			t.Errorf("%s -o %s: status %d, want %d", name, form, status, want)
		}
		if printed[form] = out; form != asYAML {
			golden(t, fmt.Sprintf("commands/%s.%s.golden", name, form), out)
		}
	}
	sameInYAML(t, printed[asJSON], printed[asYAML])
}

func withFlags(words ...string) []string { return append(words, commandFlags...) }

// TestCleanupCommand covers a dry run, --keep-services and a full cleanup, each in every output format.
func TestCleanupCommand(t *testing.T) {
	served := newStage(t)
	before := served.fake.Dump()
	printedForms(t, served, "cleanup-dry-run", 0, withFlags("cleanup", "--dry-run")...)
	printedForms(t, served, "cleanup-keep-services-dry-run", 0, withFlags("cleanup", "--dry-run", "--keep-services")...)
	if served.fake.Dump() != before {
		t.Errorf("--dry-run changed the kernel:\n%s", served.fake.Dump())
	}

	_, stderr, status := served.call(t, withFlags("cleanup", "--keep-services")...)
	state := served.fake.State()
	if status != 0 || !state.Device || len(state.Servers) != 5 || len(state.Addresses) != 4 || len(state.Sets) > 0 {
		t.Errorf("--keep-services: status %d, %s, remaining state\n%s", status, stderr, served.fake.Dump())
	}
	for _, rules := range state.Rules {
		if len(rules.Chains)+len(rules.Jumps) > 0 {
			t.Errorf("--keep-services left rules behind: %v", rules)
		}
	}

	for _, form := range textForms {
		s := newStage(t)
		out, _, status := s.call(t, withFlags("cleanup", "-o", form)...)
		if left := s.fake.State(); status != 0 || left.Device || len(left.Servers)+len(left.Sets)+len(left.Addresses) > 0 {
			t.Errorf("-o %s: status %d, remaining state\n%s", form, status, s.fake.Dump())
		}
		golden(t, "commands/cleanup."+form+".golden", out)
		if out, _, _ := s.call(t, withFlags("cleanup")...); out != "no objects of kube-ipvs on this node\n" {
			t.Errorf("second run: %q", out)
		}
	}
}

// TestNoCommandsForNFTables: where sets and rules are in nftables, plan and cleanup describe operations on them in words. Commands of
// ipset and iptables would do something else.
func TestNoCommandsForNFTables(t *testing.T) {
	for _, mode := range []kernel.Mode{kernel.IPVSWithNFTables, kernel.NFTablesOnly} {
		in := func(s *stage) *stage {
			s.Check = func(context.Context, preflight.Needs) preflight.Result {
				return preflight.Result{Choice: preflight.Choice{Families: inet.Families, Mode: mode}}
			}
			return s
		}
		for _, form := range textForms {
			s := in(newStage(t))
			plan, _, planned := in(newMachine(t)).call(t, withFlags("plan", "--manifests", "testdata/inspect", "-o", form)...)
			toRemove, _, listed := s.call(t, withFlags("cleanup", "--dry-run", "-o", form)...)
			removed, _, done := s.call(t, withFlags("cleanup", "-o", form)...)
			if status := [3]int{planned, listed, done}; status != [3]int{3, 0, 0} {
				t.Errorf("%s -o %s: status %d", mode, form, status)
			}
			for what, out := range map[string]string{"plan": plan, "cleanup --dry-run": toRemove, "cleanup": removed} {
				wrong := strings.Contains(out, "ipset") || strings.Contains(out, "iptables") || mode == kernel.NFTablesOnly && strings.Contains(out, "ipvsadm")
				if wrong || !strings.Contains(out, "in nftables") {
					t.Errorf("%s of %s -o %s:\n%s", what, mode, form, out)
				}
			}
		}
	}
}

// TestCleanupThatFails: cleanup reports each failed operation and exits with status 1.
func TestCleanupThatFails(t *testing.T) {
	s := newStage(t)
	s.fake.FailNext(kernel.KindServer, errInput)
	out, stderr, status := s.call(t, withFlags("cleanup", "-o", "json")...)
	if status != 1 || !strings.Contains(out, errInput.Error()) || !strings.Contains(stderr, "run cleanup again") {
		t.Errorf("status %d\n%s%s", status, out, stderr)
	}
}

// TestCleanupBesideAnAgent: cleanup refuses to run while an agent runs, because the agent would recreate everything.
func TestCleanupBesideAnAgent(t *testing.T) {
	s := newStage(t)
	s.TryLock = func() (func(), error) { return nil, nodelock.ErrHeld }
	before := s.fake.Dump()
	for _, args := range [][]string{{"cleanup"}, {"cleanup", "--keep-services"}, {"run", "--cleanup"}} {
		if _, stderr, status := s.call(t, withFlags(args...)...); status != 1 || !strings.Contains(stderr, "stop it first") || s.fake.Dump() != before {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
	out, stderr, status := s.call(t, withFlags("cleanup", "--dry-run")...)
	if status != 0 || !strings.Contains(out, "ip link del kube-ipvs0") || !strings.Contains(stderr, "without --dry-run, cleanup would refuse: another kube-ipvs") {
		t.Errorf("--dry-run: status %d, %s%s", status, out, stderr)
	}
	out, stderr, status = s.call(t, withFlags("cleanup", "--dry-run", "-o", "json")...)
	if status != 0 || stderr != "" || !strings.Contains(out, `"refused": "another kube-ipvs is running on this node; stop it first`) {
		t.Errorf("--dry-run in JSON: status %d, %s%s", status, out, stderr)
	}
}

// TestDryRunReleasesNodeLock: an agent can start during a dry run, even if the real cleanup would refuse to run.
func TestDryRunReleasesNodeLock(t *testing.T) {
	s := newStage(t)
	held := 0
	s.TryLock = func() (func(), error) { held++; return func() { held-- }, nil }
	open := s.Open
	s.Open = func(settings *config.Settings, chosen preflight.Choice, log *zap.Logger) (daemon.Kernel, kernel.Ports, error) {
		if held != 0 {
			t.Error("--dry-run keeps the node lock, so no agent can start")
		}
		return open(settings, chosen, log)
	}
	for _, mode := range []string{"ipvs", "iptables"} {
		s.ProxyModes = proxyIn(t, mode)
		if _, stderr, status := s.call(t, withFlags("cleanup", "--dry-run")...); status != 0 || strings.Contains(stderr, "--keep-services") != (mode == "ipvs") {
			t.Errorf("beside kube-proxy in mode %s: status %d, %s", mode, status, stderr)
		}
	}
}

// proxyIn returns URLs to query. A fake kube-proxy reports its mode at one of them.
func proxyIn(t *testing.T, mode string) []string {
	t.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(mode)) }))
	t.Cleanup(proxy.Close)
	return []string{"http://127.0.0.1:1/proxyMode", proxy.URL}
}

var errInput = fmt.Errorf("input/output error")

// TestCleanupBesideKubeProxy: cleanup refuses to remove objects that kube-proxy uses.
func TestCleanupBesideKubeProxy(t *testing.T) {
	for _, c := range []struct {
		name, mode string
		args       []string
		refused    bool
	}{
		{"ipvs", "ipvs", nil, true},
		{"ipvs, run --cleanup", "ipvs", []string{"run", "--cleanup"}, true},
		{"ipvs, --keep-services", "ipvs", []string{"cleanup", "--keep-services"}, false},
		{"ipvs, --dry-run", "ipvs", []string{"cleanup", "--dry-run"}, false},
		{"another mode", "iptables", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			s.ProxyModes = proxyIn(t, c.mode)
			before := s.fake.Dump()
			args := c.args
			if args == nil {
				args = []string{"cleanup"}
			}
			_, stderr, status := s.call(t, withFlags(args...)...)
			if c.refused != (status == 1) || c.refused && (!strings.Contains(stderr, "--keep-services") || s.fake.Dump() != before) {
				t.Errorf("status %d, %s\n%s", status, stderr, s.fake.Dump())
			}
		})
	}
}

// TestCleanupBesideSlowKubeProxy: cleanup runs only if the connection to kube-proxy's port is refused. It also refuses
// to run if there is a process named kube-proxy or a rule that kube-proxy wrote.
func TestCleanupBesideSlowKubeProxy(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, but no program answers them
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, c := range map[string]struct {
		meet func(*stage)
		says string // the refusal; empty if cleanup runs
	}{
		"nobody": {meet: func(*stage) {}},
		"no answer": {func(s *stage) {
			s.ProxyModes, s.ProxyPatience = []string{"http://" + silent.Addr().String() + "/proxyMode"}, time.Millisecond
		}, "does not answer"},
		"other mode": {func(s *stage) {
			s.ProxyModes, s.FindProcess = proxyIn(t, "nftables"), func(string, bool) string { return "77" }
		}, ""},
		"other page": {func(s *stage) { s.ProxyModes = proxyIn(t, "<html>") }, ""},
		"its process": {func(s *stage) {
			s.FindProcess = func(name string, _ bool) string { return map[string]string{"kube-proxy": "77"}[name] }
		}, "process 77"},
		"its rules": {func(s *stage) {
			rule := []string{"-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst", "-j", "ACCEPT"}
			set := kernel.Set{Name: "KUBE-CLUSTER-IP", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 65536}
			if err := errors.Join(s.fake.CreateSet(set), s.fake.AppendRule(inet.IPv4, kernel.ChainID{Table: "nat", Chain: "KUBE-SERVICES"}, rule...)); err != nil {
				t.Fatal(err)
			}
		}, "nat KUBE-SERVICES"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			c.meet(s)
			before := s.fake.Dump()
			_, stderr, status := s.call(t, withFlags("cleanup")...)
			if (c.says != "") != (status == 1) || !strings.Contains(stderr, c.says) || c.says != "" && s.fake.Dump() != before {
				t.Errorf("status %d, %s", status, stderr)
			}
		})
	}
}

// TestPlanOfTheKernel: on a new node, the plan creates everything. After an agent has synced, the plan is empty.
func TestPlanOfTheKernel(t *testing.T) {
	s := newMachine(t)
	printedForms(t, s, "plan-new", 3, withFlags("plan", "--manifests", "testdata/inspect")...)
	printedForms(t, newStage(t), "plan-done", 0, withFlags("plan", "--manifests", "testdata/inspect")...)
}

// TestPlanKnowsTheNetwork: plan rejects the same addresses as run, such as the address of this node's gateway.
func TestPlanKnowsTheNetwork(t *testing.T) {
	s := newMachine(t)
	const gateway = "203.0.113.10" // testdata/inspect contains this load balancer address
	s.fake.SetNetwork(kernel.Network{netip.MustParseAddr(gateway): {Kind: kernel.Gateway}})
	out, stderr, status := s.call(t, withFlags("plan", "--manifests", "testdata/inspect")...)
	if status != 3 || strings.Contains(out, gateway) {
		t.Errorf("status %d, %s; the plan has %s:\n%s", status, stderr, gateway, out)
	}
}

// TestPlanOfFilesInYAML: the YAML has the same content as the JSON, which TestPlanOfManifests checks.
func TestPlanOfFilesInYAML(t *testing.T) {
	args := withFlags("plan", "-f", "testdata/inspect")
	inJSON, _, _ := call(t, append(slices.Clone(args), "-o", "json")...)
	inYAML, _, _ := call(t, append(slices.Clone(args), "-o", "yaml")...)
	sameInYAML(t, inJSON, inYAML)
}

func TestPreflightCommand(t *testing.T) {
	s := newMachine(t)
	printedForms(t, s, "preflight-well", 0, withFlags("preflight")...)
	found := []finding.Finding{
		finding.New(finding.Broken, "kernel module ip_vs", "not in this kernel", nil, "run `modprobe ip_vs`"),
		finding.New(finding.Warning, "IPv6", "disabled on this host", nil, "leave it out"),
	}
	s.Check = func(context.Context, preflight.Needs) preflight.Result { return preflight.Result{Findings: found} }
	printedForms(t, s, "preflight-ill", 1, withFlags("preflight")...)
}

func TestVersionForms(t *testing.T) {
	inJSON, _, _ := call(t, "version", "-o", "json")
	inYAML, _, status := call(t, "version", "-o", "yaml")
	sameInYAML(t, inJSON, inYAML)
	if text, _, _ := call(t, "version"); status != 0 || !strings.HasPrefix(text, "kube-ipvs dev (go") {
		t.Errorf("status %d, %q", status, text)
	} else if flag, _, status := call(t, "--version"); flag != text || status != 0 {
		t.Errorf("--version: status %d, %q; want %q", status, flag, text)
	}
}

func TestValidateInYAML(t *testing.T) {
	args := []string{"config", "validate", "--config", "testdata/config/bad.yaml"}
	inJSON, _, _ := call(t, append(args, "-o", "json")...)
	inYAML, _, status := call(t, append(args, "-o", "yaml")...)
	if sameInYAML(t, inJSON, inYAML); status != 1 {
		t.Errorf("status %d", status)
	}
}

// Each of the following kube-proxy flags makes run perform one task and exit.

func TestInitOnly(t *testing.T) {
	s := newMachine(t)
	_, stderr, status := s.call(t, withFlags("run", "--init-only")...)
	state := s.fake.State()
	if status != 0 || state.Sysctls["net/ipv4/vs/conntrack"] != "1" || state.Sysctls["net/ipv4/ip_forward"] != "1" {
		t.Errorf("status %d, %s\n%s", status, stderr, s.fake.Dump())
	}
	if state.Device || len(state.Sets)+len(state.Servers) > 0 {
		t.Errorf("--init-only changed more than sysctls:\n%s", s.fake.Dump())
	}
	s.fake.Fixes("net/ipv4/ip_forward", true)
	if _, stderr, status := s.call(t, withFlags("run", "--init-only")...); status != 0 {
		t.Errorf("with ip_forward set already: status %d, %s", status, stderr)
	}
}

func TestInitOnlyFails(t *testing.T) {
	s := newMachine(t)
	s.fake.Fixes("net/ipv4/ip_forward", true)
	if _, stderr, status := s.call(t, withFlags("run", "--init-only")...); status != 1 || !strings.Contains(stderr, "ip_forward") {
		t.Errorf("status %d, %s", status, stderr)
	}
}

func TestRunCleanup(t *testing.T) {
	s := newStage(t)
	out, _, status := s.call(t, withFlags("run", "--cleanup")...)
	if status != 0 || !strings.Contains(out, "ipvsadm -D -t 10.96.0.10:80") || len(s.fake.State().Servers) > 0 {
		t.Errorf("status %d, %s", status, out)
	}
}

func TestWriteConfigTo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "written.yaml")
	_, stderr, status := call(t, "run", "--config", "testdata/config/kube-proxy.yaml", "--ipvs-scheduler", "wlc", "-v4", "--write-config-to", file)
	text, err := os.ReadFile(file)
	if err != nil || status != 0 {
		t.Fatalf("status %d, %v", status, err)
	}
	golden(t, "config/view.golden", string(text))
	golden(t, "config/warnings.golden", stderr)
	if _, stderr, status := call(t, "run", "--write-config-to", filepath.Join(file, "below")); status != 1 || !strings.Contains(stderr, "--write-config-to") {
		t.Errorf("a file that cannot be created: got status %d, %s", status, stderr)
	}
}

func TestRunVersion(t *testing.T) {
	want, _, _ := call(t, "version")
	for _, flag := range []string{"--version", "--version=raw"} {
		if out, _, status := call(t, "run", flag); out != want || status != 0 {
			t.Errorf("%s: status %d, %q", flag, status, out)
		}
	}
	if _, stderr, status := call(t, "run", "--version=old"); status != 2 || !strings.Contains(stderr, "raw") {
		t.Errorf("status %d, %s", status, stderr)
	}
}

// TestRunWithFalseActions: if these flags are false, run starts the agent. Here it fails, because two sources are set.
func TestRunWithFalseActions(t *testing.T) {
	_, stderr, status := call(t, "run", "--cleanup=false", "--init-only=false", "--version=false", "--manifests", "x", "--kubeconfig", "y")
	if status != 2 || !strings.Contains(stderr, "only one source") {
		t.Errorf("status %d, %s", status, stderr)
	}
}

// TestPreflightCompare: each difference that clients would notice is reported with its frontends, and nothing is written.
func TestPreflightCompare(t *testing.T) {
	s := newMachine(t)
	serve := func(addr, scheduler string, persistent uint32, endpoints ...string) {
		server := kernel.Server{Key: kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP}, Scheduler: scheduler}
		if server.MaskBits = 32; persistent > 0 {
			server.Flags, server.Timeout = kernel.FlagPersistent, persistent
		}
		err := errors.Join(s.fake.AddAddress(kernel.BoundAddress{Addr: server.Key.Addr.Addr()}), s.fake.AddServer(server))
		for _, e := range endpoints {
			d := kernel.Destination{Addr: netip.MustParseAddrPort(e), Weight: 1}
			err = errors.Join(err, s.fake.AddDestination(kernel.ServerDestination{Server: server.Key, Destination: d}))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range s.fake.Apply(t.Context(), []kernel.Op{{Verb: kernel.Create, Object: kernel.DummyDevice{}}}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	serve("10.96.0.10:80", "lc", 10800, "10.244.1.5:8080", "10.244.9.9:8080")
	serve("10.96.0.99:80", "rr", 0)
	before := s.fake.Dump()
	printedForms(t, s, "preflight-compare", 0, withFlags("preflight", "--compare", "--manifests", "testdata/web", "--hostname-override", "node-1")...)
	if after := s.fake.Dump(); after != before {
		t.Errorf("the kernel has changed from\n%s\nto\n%s", before, after)
	}
	if _, stderr, status := s.call(t, withFlags("preflight", "--compare", "--manifests", "testdata/none")...); status != 1 || !strings.Contains(stderr, "testdata/none") {
		t.Errorf("no manifests: status %d, %s", status, stderr)
	}
}

// TestCleanupReleasesPorts: cleanup removes the node ports that the agent has reserved, and no other reserved ports.
func TestCleanupReleasesPorts(t *testing.T) {
	record := filepath.Join(t.TempDir(), "reserved-ports")
	if err := os.WriteFile(record, []byte("30080,30090\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reserved := kernel.Ports{{First: 8080, Last: 8080}, {First: 30080, Last: 30080}}
	s := newMachine(t)
	s.SourcePorts = localports.Host{
		Record:   func() (string, error) { return record, nil },
		Reserved: func() (kernel.Ports, error) { return reserved, nil },
		Reserve:  func(ports kernel.Ports) error { reserved = ports; return nil },
	}
	const would, did = "would remove the agent's node ports 30080 from the sysctl", "removed the agent's node ports 30080 from the sysctl"
	for _, step := range []struct {
		args         []string
		after, notes string
	}{
		{[]string{"cleanup", "--dry-run"}, "8080,30080", would},
		{[]string{"cleanup"}, "8080", did},
		{[]string{"cleanup"}, "8080", ""},
	} {
		_, stderr, status := s.call(t, withFlags(step.args...)...)
		if status != 0 || reserved.String() != step.after || strings.Contains(stderr, would) != (step.notes == would) || strings.Contains(stderr, did) != (step.notes == did) {
			t.Errorf("%v: status %d, %s reserved, %s", step.args, status, reserved, stderr)
		}
	}
}
