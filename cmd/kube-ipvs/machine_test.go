//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/manifests"
)

// stage is a machine with a fake kernel. Its agent serves the Services in testdata/inspect.
type stage struct {
	*machine.Machine
	fake   *kerneltest.Fake
	socket string
	// leftLink is true if a killed agent in user space has left kube-ipvs0.
	leftLink bool
}

type inMemory struct{ *kerneltest.Fake }

func (inMemory) Watch(ctx context.Context, _, _ func()) { <-ctx.Done() }
func (inMemory) LimitWaits()                            {}
func (inMemory) PrepareMove(context.Context, map[kernel.ServerKey]struct{}) (int, error) {
	return 0, nil
}
func (inMemory) Close() error { return nil }

// fixedSource delivers all Services once and then no changes.
type fixedSource map[model.ServiceID]*model.Service

func (fixedSource) Changed() <-chan struct{} { return nil }
func (fixedSource) Synced() bool             { return true }
func (s fixedSource) Take() model.Changes {
	all := maps.Clone(s)
	clear(s)
	return model.Changes{Services: all}
}

var (
	noon     = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	nodeAddr = netip.MustParseAddr("192.0.2.1")
)

func newStage(t *testing.T) *stage {
	t.Helper()
	return newStageOf(t, "testdata/inspect")
}

func newStageOf(t *testing.T, dir string) *stage {
	t.Helper()
	s := newMachine(t)
	loaded := settingsOf(t)
	cfg := compile.Config{Host: compile.Host{NodeName: "node-1", Families: inet.Families}, Settings: loaded.Settings.Compile()}
	changes, err := manifests.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	loop := agent.New(agent.Config{Compile: cfg, AuditInterval: time.Hour}, fixedSource(changes.Services), s.fake, zap.NewNop())
	ctx, stop := context.WithCancel(context.Background())
	server := status.NewServer(status.Config{Path: s.socket, View: loop.View, Complete: timeless, Log: zap.NewNop()})
	ended := make(chan struct{}, 2)
	go func() { loop.Run(ctx); ended <- struct{}{} }()
	go func() { server.Run(ctx); ended <- struct{}{} }()
	t.Cleanup(func() { stop(); <-ended; <-ended })
	for {
		v, err := status.Get(t.Context(), s.socket, agent.Query{})
		if err == nil && v.Agent.LastFullSync != nil {
			break
		}
		if err != nil && !errors.Is(err, status.ErrNoAgent) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // until the agent listens
	}
	s.Kernel = func(context.Context, machine.Look) *explain.Kernel { return explained(s.fake, cfg) }
	return s
}

func newMachine(t *testing.T) *stage {
	t.Helper()
	s := &stage{fake: kerneltest.New(compile.Chains...), socket: filepath.Join(t.TempDir(), "agent.sock")}
	s.fake.SetNodeAddresses(nodeAddr)
	s.Machine = &machine.Machine{
		Machine: daemon.Machine{
			Check: func(context.Context, preflight.Needs) preflight.Result {
				return preflight.Result{Choice: preflight.Choice{Families: inet.Families}}
			},
			Open: func(*config.Settings, preflight.Choice, *zap.Logger) (daemon.Kernel, kernel.Ports, error) {
				return inMemory{s.fake}, kernel.Ports{}, nil
			},
		},
		TryLock: func() (func(), error) { return func() {}, nil },
		Kernel:  func(context.Context, machine.Look) *explain.Kernel { return explained(s.fake, compile.Config{}) },
		Release: func() string { return "6.1.0-1-amd64" },
		Host: func(context.Context) doctor.Host {
			return fakeHost{"/proc/modules": "ip_vs 1\nip_vs_rr 1\nip_tables 1\n"}
		},
		ProxyModes:    []string{"http://127.0.0.1:1/proxyMode"}, // connections are refused
		FindProcess:   func(string, bool) string { return "" },
		Link:          machine.Link{Exists: func() (bool, error) { return s.leftLink, nil }, Remove: func() error { s.leftLink = false; return nil }},
		LastDataPlane: func() string { return kernel.DataPlaneAuto },
		Counts:        func(context.Context, string) (inspect.Counts, error) { return inspect.Counts{}, nil },
		Connect:       func(context.Context, netip.AddrPort) error { return nil },
		Measure:       func(context.Context, *doctor.Echo) {},
		Probe:         func(*doctor.Probed) error { return nil },
		Metrics: func(context.Context, string) (int, string, error) {
			return http.StatusOK, "kube_ipvs_services 2\n", nil
		},
		AgentLog: func(context.Context, io.Writer) error { return errors.New("no journal here") },

		ProxyPatience: 10 * time.Second,
	}
	return s
}

// fakeHost contains the files of a host by path. Get returns status 200 for every URL.
type fakeHost map[string]string

func (h fakeHost) ReadFile(name string) ([]byte, error) {
	if text, ok := h[name]; ok {
		return []byte(text), nil
	}
	return nil, fs.ErrNotExist
}

func (h fakeHost) Names(dir string) ([]string, error) {
	var names []string
	for file := range h {
		if rest, ok := strings.CutPrefix(file, dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	return names, nil
}

func (fakeHost) Get(string) (int, string, error) { return http.StatusOK, "", nil }

func (h fakeHost) Tail(name string) ([]byte, error) { return h.ReadFile(name) }

func (fakeHost) Interfaces() ([]kernel.Interface, error) {
	return []kernel.Interface{{Name: "eth0", Kind: "device", MTU: 1500, Up: true, Addressed: true}}, nil
}

func (fakeHost) Pods() ([]kernel.Pod, error) { return nil, nil }

func (fakeHost) APIServer() string { return "" }

func (fakeHost) ServerCertificates(string, string) ([][]byte, error) { return nil, nil }

func (fakeHost) KernelLog() (string, error) { return "", nil }

func (fakeHost) ConnectPrograms() (int, error) { return 0, nil }

func (fakeHost) Neighbors() ([]kernel.Neighbor, error) { return nil, nil }

func (fakeHost) Queues() ([]kernel.Queue, error) { return nil, nil }

func (fakeHost) Leftovers() ([]kernel.Leftover, error) { return nil, nil }

func (fakeHost) ClockSynchronized() (bool, error) { return true, nil }

func settingsOf(t *testing.T) *config.Loaded {
	t.Helper()
	cmd, flags := newRun(machine.This()), config.Flags{}
	cmd.ResetFlags()
	flags.AddRun(cmd.Flags())
	if err := cmd.ParseFlags(commandFlags); err != nil {
		t.Fatal(err)
	}
	loaded, err := flags.Load()
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// commandFlags keep the wanted state independent of the test machine.
var commandFlags = []string{"--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--conntrack-max-per-core", "0"}

// timeless replaces the values in a view that differ between runs.
func timeless(v *view.View, _ agent.Query) {
	v.Time = noon
	if v.Agent.LastSync != nil {
		last := *v.Agent.LastSync
		last.Started, last.Seconds = noon.Add(-time.Minute), 0.02
		v.Agent.LastSync, v.Agent.LastFullSync = &last, &last
	}
	v.Node.Name, v.Node.Version, v.Node.PID, v.Node.Started = "node-1", "v1.0.0", 42, noon.Add(-time.Hour)
	v.Node.Kernel, v.Node.Rules, v.Node.Families = "6.1.0-1-amd64", "iptables-nft 1.8.9 (kubelet uses it)", []string{"IPv4", "IPv6"}
	v.Node.UnservedFamilies, v.Node.Settings = []string{}, []view.Setting{{Name: "clusterCIDR", Value: "10.244.0.0/16", From: "--cluster-cidr"}}
	if v.History != nil {
		first := *v.History.Entries[0] // the number of audits varies, so keep only the first entry
		first.Time, first.Seconds, first.Stages = noon.Add(-time.Minute), 0.02, view.StageSeconds{Gather: 0.001, Compile: 0.002, Plan: 0.003, Apply: 0.014}
		again := noon.Add(-time.Second)
		repair := &view.PastSync{
			ID: 2, Time: noon.Add(-30 * time.Second), Repeated: 3, Last: &again, Kind: view.SyncRepair, Causes: []view.Cause{}, Seconds: 0.003,
			Services:   view.Some[string]{Count: 1, Items: []string{"shop/web"}},
			Operations: []view.OperationCount{{Object: "virtual servers", Plane: "ipvs", Added: 1}},
			Drift:      view.Some[string]{Count: 1, Items: []string{"virtual server 203.0.113.10:80/TCP is missing"}},
			Failures:   view.Some[view.Failure]{Items: []view.Failure{}}, Problems: view.Some[string]{Items: []string{}}, Resolved: view.Some[string]{Items: []string{}},
		}
		v.History = &view.History{Entries: []*view.PastSync{&first, repair}}
	}
	contact := noon.Add(-10 * time.Second)
	v.Sources = []view.Source{{Name: "Service", LastContact: &contact}}
}

var someConnections = []kernel.Connection{
	{
		Protocol: "TCP", Client: netip.MustParseAddrPort("198.51.100.7:40001"), Virtual: netip.MustParseAddrPort("203.0.113.10:80"),
		Destination: netip.MustParseAddrPort("10.244.1.5:8080"), State: "ESTABLISHED", Expires: 890,
	},
	{
		Protocol: "TCP", Client: netip.MustParseAddrPort("198.51.100.7:0"), Virtual: netip.MustParseAddrPort("203.0.113.10:80"),
		Destination: netip.MustParseAddrPort("10.244.1.5:8080"), State: "NONE", Expires: 10790,
	},
}

func explained(fake *kerneltest.Fake, cfg compile.Config) *explain.Kernel {
	k := &explain.Kernel{
		State: fake.State(), Rules: map[inet.Family]kernel.RuleListing{}, NodeAddresses: []netip.Addr{nodeAddr}, Connections: someConnections,
		Routes: map[netip.Addr]kernel.Route{netip.MustParseAddr("198.51.100.7"): {Interface: "eth0"}},
	}
	for _, r := range compile.Base(cfg).Rulesets {
		k.Rules[r.Family] = listing(r)
	}
	return k
}

func listing(r kernel.Ruleset) kernel.RuleListing {
	l := kernel.RuleListing{Rules: map[kernel.ChainID][]kernel.SavedRule{}, Policies: map[kernel.ChainID]string{}}
	add := func(id kernel.ChainID, rule kernel.Rule) {
		// iptables prints the options of MARK in a different form.
		spec := strings.NewReplacer("--or-mark 0x4000", "--set-xmark 0x4000/0x4000", "--xor-mark 0x4000", "--set-xmark 0x4000/0x0").Replace(rule.String())
		l.Rules[id] = append(l.Rules[id], kernel.SavedRule{ChainID: id, Spec: spec, Rule: kernel.Rule{Conditions: rule.Conditions, Verdict: rule.Verdict}})
	}
	for _, c := range r.Chains {
		l.Rules[c.ChainID] = nil
		for _, rule := range c.Rules {
			add(c.ChainID, rule)
		}
	}
	for _, j := range r.Jumps {
		add(j.ChainID, j.Rule)
	}
	return l
}

func (s *stage) call(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, err bytes.Buffer
	status = execute(t.Context(), s.Machine, args, &out, &err)
	return out.String(), err.String(), status
}

func (s *stage) inspect(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return s.call(t, append(slices.Clone(args), "--status-socket", s.socket)...)
}
