package main

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// Old rules go when the new ones stand, not before, and are looked for once.
func TestMoveOut(t *testing.T) {
	failed := errors.New("failed")
	result := func(o kernel.Object, err error, skipped bool) []agent.Result {
		return []agent.Result{{Op: kernel.Op{Verb: kernel.Ensure, Object: o}, Err: err, Skipped: skipped}}
	}
	rules := kernel.Ruleset{Family: inet.IPv4}
	observed, looked := 0, 0
	observe := moveOut(t.Context(), func(agent.Report) { observed++ }, func(context.Context) (*iptables.Leftovers, error) {
		looked++
		return nil, failed
	}, zap.NewNop())
	for i, step := range []struct {
		name   string
		report agent.Report
		want   int
	}{
		{"kernel not read", agent.Report{Full: true, Err: failed}, 0},
		{"a part", agent.Report{}, 0},
		{"rules refused", agent.Report{Full: true, Err: failed, Results: result(rules, failed, false)}, 0},
		{"rules skipped", agent.Report{Full: true, Err: failed, Results: result(rules, nil, true)}, 0},
		{"something else refused", agent.Report{Full: true, Err: failed, Results: result(kernel.SysctlSetting{}, failed, false)}, 1},
		{"all well", agent.Report{Full: true}, 1},
	} {
		observe(step.report)
		if observed != i+1 || looked != step.want {
			t.Errorf("%s: looked %d times, want %d; observed %d reports", step.name, looked, step.want, observed)
		}
	}
}
