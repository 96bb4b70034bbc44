//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	// moveInterval is the time between two looks for the module ip_vs.
	moveInterval   = 10 * time.Second
	dataPlaneField = "--data-plane"
)

// nodes holds the node as the agent has opened it last. Every goroutine may read it.
type nodes struct{ last atomic.Pointer[Node] }

func newNodes(first *Node) *nodes {
	n := &nodes{}
	n.last.Store(first)
	return n
}

func (n *nodes) current() *Node { return n.last.Load() }

// mover watches the node's kernel, and moves the node from nftables to IPVS once another program has loaded the module ip_vs.
type mover struct {
	machine      Machine
	nodes        *nodes
	current      *current
	to           chan agent.Move
	drift, moved signal
	ended        func() // called after the node has moved
	telemetry    interface {
		Moved(dataPlane string, lost int, field string)
		SetProblem(model.Problem)
	}
	log *zap.Logger
	// copies are the virtual servers that a failed attempt has copied to IPVS and could not remove.
	copies map[kernel.ServerKey]struct{}
}

// run looks for IPVS until the node has moved. After a failure, nftables keeps balancing, and run tries again.
func (m *mover) run(ctx context.Context) {
	m.nodes.current().watch(ctx, m.drift.send, m.moved.send)
	if !m.nodes.current().Mode.NFTablesBalances() || m.current.settings().DataPlane != kernel.DataPlaneAuto {
		return
	}
	ticker := time.NewTicker(moveInterval)
	defer ticker.Stop()
	before := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		why, problem := "", withoutIPVS(m.nodes.current().WhyDataPlane)
		if m.machine.HasIPVS() {
			err := m.move(ctx)
			if err == nil || ctx.Err() != nil {
				return
			}
			why, problem = err.Error(), notMoved(err)
		}
		if why != before {
			before = why
			m.log.Warn("nftables keeps balancing; retrying", zap.String("because", problem.Reason))
			m.telemetry.SetProblem(problem)
		}
	}
}

func notMoved(why error) model.Problem {
	return model.Problem{
		Field: dataPlaneField, Value: kernel.DataPlaneAuto,
		Reason: "nftables balances connections, although ip_vs is loaded: " + why.Error(),
		Remedy: "fix the cause, or use --data-plane=nftables to accept this",
	}
}

func (m *mover) move(ctx context.Context) error {
	old := m.nodes.current()
	node, warnings, err := m.open(ctx, old)
	if err != nil {
		return err
	}
	lost, err := node.Kernel.PrepareMove(ctx, m.copies)
	if err != nil {
		node.Close(m.log)
		return fmt.Errorf("copy virtual servers to IPVS: %w", err)
	}
	done := make(chan struct{})
	select {
	case m.to <- agent.Move{Kernel: node.Kernel, Mode: node.Mode, Done: func() { close(done) }}:
	case <-ctx.Done():
		node.Close(m.log)
		return ctx.Err()
	}
	// The agent uses the new kernel now, but nftables balances until its rules are replaced.
	node.watch(ctx, m.drift.send, m.moved.send)
	old.Close(m.log)
	select {
	case <-done:
		m.nodes.last.Store(node)
	case <-ctx.Done():
		m.nodes.last.Store(node) // is closed at the end
		return ctx.Err()
	}
	m.ended()
	m.telemetry.Moved(node.Mode.DataPlane(), lost, dataPlaneField)
	for _, w := range warnings {
		m.log.Warn(w.String())
	}
	m.log.Info("moved from nftables to IPVS; open connections continue", zap.Int("lost_affinity_records", lost))
	return nil
}

// open opens the node for IPVS if preflight finds everything that IPVS needs. Sets and rules stay in nftables until the agent restarts.
func (m *mover) open(ctx context.Context, old *Node) (node *Node, warnings []finding.Finding, err error) {
	settings := *m.current.settings()
	settings.DataPlane, settings.Rules = kernel.DataPlaneIPVS, kernel.RulesNFTables
	found := m.machine.Preflight(ctx, &settings)
	var missing []string
	for _, f := range found.Findings {
		switch f.Severity {
		case finding.Broken:
			missing = append(missing, f.String())
		case finding.Warning:
			warnings = append(warnings, f)
		}
	}
	if len(missing) > 0 {
		return nil, nil, errors.New(strings.Join(missing, "; "))
	}
	found.Families, found.Without = old.Families, old.Without
	found.WhyDataPlane, found.WhyRules = "the module ip_vs was loaded while the agent was running", "nftables balanced when the agent started"
	node, err = m.machine.open(&settings, found, zap.NewNop()) // this would log the same lines again
	return node, warnings, err
}
