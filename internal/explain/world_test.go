package explain_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// source is a fake source that has delivered all its Services.
type source map[model.ServiceID]*model.Service

func (source) Changed() <-chan struct{} { return nil }
func (source) Synced() bool             { return true }
func (s source) Take() model.Changes {
	all := maps.Clone(s)
	clear(s)
	return model.Changes{Services: all}
}

// world is a node on which an agent serves some Services.
type world struct {
	kernel *explain.Kernel
	view   *view.View
}

func newWorld(t *testing.T, services ...*model.Service) *world {
	t.Helper()
	return newWorldWith(t, compiletest.Config(), services...)
}

func newWorldWith(t *testing.T, cfg compile.Config, services ...*model.Service) *world {
	t.Helper()
	all := source{}
	for _, s := range services {
		all[s.ID] = s
	}
	fake := kerneltest.New(compile.Chains...)
	node := netip.MustParseAddr("192.0.2.1")
	fake.SetNodeAddresses(node, netip.MustParseAddr("fd00:2::1"))
	loop := agent.New(agent.Config{Compile: cfg, AuditInterval: time.Hour}, all, fake, zap.NewNop())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); loop.Run(ctx) }()
	v := &view.View{}
	for v.Agent.LastFullSync == nil {
		var err error
		if v, err = loop.View(ctx, agent.Query{All: true}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-ended
	v.Node.Name = compiletest.Node
	rules := map[inet.Family]kernel.RuleListing{}
	for _, r := range compile.Base(cfg).Rulesets {
		rules[r.Family] = listing(r)
	}
	return &world{
		kernel: &explain.Kernel{
			State: fake.State(), Rules: rules, Mode: cfg.Mode,
			NodeAddresses: []netip.Addr{node, netip.MustParseAddr("fd00:2::1")},
		},
		view: v,
	}
}

// listing formats a ruleset as iptables-save does.
func listing(r kernel.Ruleset) kernel.RuleListing {
	l := kernel.RuleListing{
		Rules:    map[kernel.ChainID][]kernel.SavedRule{},
		Policies: map[kernel.ChainID]string{{Table: "filter", Chain: "INPUT"}: "ACCEPT"},
	}
	for _, c := range r.Chains {
		l.Rules[c.ChainID] = nil
		for _, rule := range c.Rules {
			l.Rules[c.ChainID] = append(l.Rules[c.ChainID], saved(c.ChainID, rule))
		}
	}
	for _, j := range r.Jumps {
		l.Rules[j.ChainID] = append(l.Rules[j.ChainID], saved(j.ChainID, j.Rule))
	}
	return l
}

func saved(at kernel.ChainID, r kernel.Rule) kernel.SavedRule {
	spec := fmt.Sprintf("-m comment --comment %q %s", r.Comment(), r)
	for _, rewritten := range []struct{ option, mask string }{{"--or-mark 0x4000", "0x4000/0x4000"}, {"--xor-mark 0x4000", "0x4000/0x0"}} {
		spec = strings.Replace(spec, rewritten.option, "--set-xmark "+rewritten.mask, 1)
	}
	return kernel.SavedRule{ChainID: at, Spec: spec, Rule: r, Tag: r.Tag()}
}

func (w *world) ask(to, from string) explain.Explanation {
	return explain.Explain(w.kernel, w.view, w.view.Base, question(to, from))
}

func question(to, from string) explain.Question {
	query, err := explain.ParseQuery(to)
	if err != nil {
		panic(err)
	}
	protocol := query.Protocol
	if protocol == 0 {
		protocol = inet.TCP
	}
	q := explain.Question{To: kernel.ServerKey{Addr: query.Addr, Protocol: protocol}}
	if from != "" {
		q.From = netip.MustParseAddr(from)
	}
	return q
}

// insert adds a foreign rule at the top of a chain.
func (w *world) insert(table, chain, spec string) {
	id := kernel.ChainID{Table: table, Chain: chain}
	rules := w.kernel.Rules[inet.IPv4].Rules
	rules[id] = slices.Insert(rules[id], 0, iptables.ParseRule(id, spec))
}

func says(e explain.Explanation, text string) bool {
	return slices.ContainsFunc(e.Reasons, func(r string) bool { return strings.Contains(r, text) })
}

func steps(e explain.Explanation) string {
	var b strings.Builder
	explain.Print(&b, []explain.Explanation{e}, true)
	return b.String()
}
