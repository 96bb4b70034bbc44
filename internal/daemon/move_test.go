//go:build linux

package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// movable is a kernel that can be opened and closed.
type movable struct {
	recorder
	of        *moves
	preparing error
	closed    bool
	left      int // how many copies earlier attempts could not remove
}

func (m *movable) PrepareMove(_ context.Context, copies map[kernel.ServerKey]struct{}) (int, error) {
	m.of.Lock()
	defer m.of.Unlock()
	if m.left = len(copies); m.preparing != nil {
		copies[kernel.ServerKey{Protocol: inet.TCP}] = struct{}{}
	}
	return 3, m.preparing
}

func (m *movable) Close() error {
	m.of.Lock()
	defer m.of.Unlock()
	m.closed = true
	return nil
}

// writing is how long the loop takes to replace the rules.
const writing = time.Second

// moves is a node that balances with nftables, and what its mover has done. The test holds the lock except while it sleeps.
type moves struct {
	sync.Mutex
	mover
	ipvs     bool
	findings []finding.Finding
	old, new *movable
	needs    preflight.Needs
	plane    string
	lost     int
	problem  *model.Problem
}

func (m *moves) Moved(plane string, lost int, _ string) {
	m.Lock()
	defer m.Unlock()
	m.plane, m.lost, m.problem = plane, lost, nil
}

func (m *moves) SetProblem(p model.Problem) {
	m.Lock()
	defer m.Unlock()
	m.problem = &p
}

func newMoves(t *testing.T, plane string) *moves {
	t.Helper()
	m := &moves{}
	m.old, m.new = &movable{of: m}, &movable{of: m}
	m.mover = mover{
		machine: Machine{
			Check: func(_ context.Context, needs preflight.Needs) preflight.Result {
				m.Lock()
				defer m.Unlock()
				m.needs = needs
				return preflight.Result{Findings: m.findings, Choice: preflight.Choice{Mode: kernel.IPVSWithNFTables}}
			},
			Open: func(*config.Settings, preflight.Choice, *zap.Logger) (Kernel, kernel.Ports, error) {
				return m.new, kernel.Ports{}, nil
			},
			HasIPVS: func() bool {
				m.Lock()
				defer m.Unlock()
				return m.ipvs
			},
		},
		nodes:   newNodes(&Node{Kernel: m.old, Choice: preflight.Choice{Mode: kernel.NFTablesOnly, WhyDataPlane: "the kernel has no IPVS", Families: inet.Families}}),
		current: newCurrent(&config.Loaded{Settings: config.Settings{NodeName: "node-1", DataPlane: plane}}),
		to:      make(chan agent.Move), drift: newSignal(), moved: newSignal(), ended: func() {}, telemetry: m, log: zap.NewNop(), copies: map[kernel.ServerKey]struct{}{},
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go m.run(ctx)
	go func() { // the loop
		select {
		case move := <-m.to:
			time.Sleep(writing)
			move.Done()
		case <-ctx.Done():
		}
	}()
	t.Cleanup(func() { stop(); m.nodes.current().Close(zap.NewNop()) })
	return m
}

func (m *moves) mustStay(t *testing.T, why string) {
	t.Helper()
	if m.plane != "" || m.problem == nil || !strings.Contains(m.problem.String(), why) || m.old.closed || m.nodes.current().Kernel != Kernel(m.old) {
		t.Fatalf("%q, problem %v, old kernel closed: %t", m.plane, m.problem, m.old.closed)
	}
}

func (m *moves) mustHaveMoved(t *testing.T) {
	t.Helper()
	node := m.nodes.current()
	if m.plane != kernel.DataPlaneIPVS || m.lost != 3 || m.problem != nil || !m.old.closed || len(node.host.Families) != 2 {
		t.Errorf("%q, lost %d, problem %v, old kernel closed: %t", m.plane, m.lost, m.problem, m.old.closed)
	}
	if node.Kernel != Kernel(m.new) || node.host.Mode != kernel.IPVSWithNFTables {
		t.Errorf("the node is %+v", node.host)
	}
	if m.needs.DataPlane != kernel.DataPlaneIPVS || m.needs.Rules != kernel.RulesNFTables {
		t.Errorf("preflight checked %s with rules in %s", m.needs.DataPlane, m.needs.Rules)
	}
}

func (m *moves) sleep(d time.Duration) {
	m.Unlock()
	defer m.Lock()
	time.Sleep(d)
	synctest.Wait()
}

// Within 30 s after another program has loaded ip_vs, the node moves to IPVS, if preflight finds what IPVS needs.
func TestMoverMoves(t *testing.T) {
	for name, c := range map[string]struct {
		plane  string
		before func(*moves) // IPVS is there, but something is missing
		repair func(*moves)
		why    string
	}{
		"at once": {plane: kernel.DataPlaneAuto},
		"preflight fails": {kernel.DataPlaneAuto, func(m *moves) {
			m.findings = []finding.Finding{{Severity: finding.Broken, Subject: "kernel module ip_vs_rr", Problem: "missing"}}
		}, func(m *moves) { m.findings = nil }, "ip_vs_rr"},
		"copying fails": {kernel.DataPlaneAuto, func(m *moves) { m.new.preparing = errors.New("another program's virtual server") },
			func(m *moves) { m.new.preparing = nil }, "another program's virtual server"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMoves(t, c.plane)
				m.Lock()
				defer m.Unlock()
				m.sleep(time.Hour)
				if m.plane != "" || m.problem != nil {
					t.Fatalf("without IPVS: %q, problem %v", m.plane, m.problem)
				}
				m.ipvs = true
				if c.before != nil {
					c.before(m)
					m.sleep(time.Hour)
					m.mustStay(t, c.why)
					m.ipvs = false
					m.sleep(30 * time.Second)
					m.mustStay(t, "the kernel has no IPVS")
					m.ipvs = true
					c.repair(m)
				}
				for !m.old.closed {
					m.sleep(writing / 2)
				}
				if mode := m.nodes.current().Mode; !mode.NFTablesBalances() {
					t.Errorf("before the rules are replaced, the node is said to balance with %s", mode.DataPlane())
				}
				m.sleep(writing)
				m.mustHaveMoved(t)
				if want := name == "copying fails"; (m.new.left == 1) != want {
					t.Errorf("the last attempt knew %d copies of earlier ones", m.new.left)
				}
			})
		})
	}
}

// A node whose setting names nftables never moves.
func TestMoverObeysSetting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMoves(t, kernel.DataPlaneNFTables)
		m.Lock()
		defer m.Unlock()
		m.ipvs = true
		m.sleep(24 * time.Hour)
		if m.plane != "" || m.problem != nil || m.needs.DataPlane != "" {
			t.Errorf("%q, problem %v", m.plane, m.problem)
		}
	})
}
