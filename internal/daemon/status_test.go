//go:build linux

package daemon

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestForwardedWithoutLoop: only a query for nothing else than what the process forwards is answered without the loop.
func TestForwardedWithoutLoop(t *testing.T) {
	errLoop := errors.New("the loop was asked")
	ask := viewOf(func(context.Context, agent.Query) (*view.View, error) { return nil, errLoop })
	for query, want := range map[agent.Query]error{
		{Forwarded: true}:                    nil,
		{Forwarded: true, Connections: true}: nil,
		{}:                                   errLoop,
		{Connections: true}:                  errLoop,
		{Forwarded: true, All: true}:         errLoop,
		{Forwarded: true, Address: netip.MustParseAddr("10.96.0.1")}: errLoop,
	} {
		if _, err := ask(t.Context(), query); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", query, err, want)
		}
	}
}

// process counts what is asked of it.
type process struct{ sums, lists int }

func (p *process) Traffic() []kernel.TableServer             { p.sums++; return nil }
func (p *process) Connections(time.Time) []kernel.Connection { p.lists++; return nil }

// TestSumsListNoConnections: connections are listed only for a query that asks for them.
func TestSumsListNoConnections(t *testing.T) {
	p := &process{}
	forwarded(p, agent.Query{Forwarded: true})
	if *p != (process{sums: 1}) {
		t.Errorf("sums: %+v", *p)
	}
	forwarded(p, agent.Query{Forwarded: true, Connections: true})
	if *p != (process{sums: 2, lists: 1}) {
		t.Errorf("connections: %+v", *p)
	}
}
