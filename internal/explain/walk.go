package explain

import (
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// walk follows one packet through chains and records the rules that affect it.
type walk struct {
	k       *Kernel
	listing kernel.RuleListing // of the current stage
	hook    kernel.Hook
	stage   stage
	place   place
	steps   []Step
	// quiet is true if only the step that stops the packet matters.
	quiet bool
	// masquerades is the rule that masquerades the packet. depends lists the unknown matches of rules that may
	// masquerade it.
	masquerades string
	depends     []string
	maybeStops  []string
	// sources are the new sources of the connection that rules give, or may give. The first certain one is the last.
	sources []sourceNAT
	// inNAT is true in chains that only the first packet of a connection passes.
	inNAT bool
	// meddlers are the other programs' rules that have changed the agent's mark, or keep the packet from the agent's rules in table nat.
	meddlers []string
	// opaque is true if explain cannot evaluate whether one of maybeStops matches.
	opaque bool
	// untracks are the rules that disable connection tracking.
	untracks []string
	// redirected is true if a rule has changed the packet's destination.
	redirected bool
	// exempts are the unknown matches of rules that may have accepted the packet in this hook. An accepted packet skips
	// the later rules.
	exempts condition
	// unread lists chains whose rules were not read.
	unread []string
	// foreign are the other programs' rules that stop or may stop the packet.
	foreign []string
}

// end describes how a packet leaves a rule or a chain.
type end uint8

const (
	continues end = iota // with the next rule
	returned             // to the calling chain
	accepted             // accepted: the remaining rules of the hook are skipped
	stopped
)

// flow describes how a packet reached a rule: certainly, or only if the packet meets a condition.
type flow struct {
	certain bool
	on      condition
}

// only returns the flow after a rule whose match had the given result.
func (f flow) only(a matchResult, unknown condition) flow {
	return flow{f.certain && a == yes, f.on.and(unknown)}
}

// shown is a rule as the steps print it. ours is true for a rule of the agent.
type shown struct {
	// saved is a rule of iptables. It becomes text only on demand, because a search prints few of the rules that it passes.
	saved     *kernel.SavedRule
	family    inet.Family
	text, why string
	ours      bool
}

func shownRule(p *packet, saved *kernel.SavedRule) shown {
	return shown{saved: saved, family: p.family, why: saved.Rule.Why, ours: saved.Tag != ""}
}

func (s shown) object() string {
	if s.saved == nil {
		return s.text
	}
	return command(s.family, s.saved.String())
}

// command adds the command to the arguments of a rule that belongs to IPv6.
func command(f inet.Family, args string) string {
	if f == inet.IPv6 {
		return "ip6tables " + args
	}
	return args
}

// maxDepth limits the nesting of chains. The kernel rejects loops, but the rules may change while explain reads them.
const maxDepth = 16

// builtIn walks a built-in chain and applies its policy. It returns false if the packet was stopped.
func (w *walk) builtIn(p *packet) bool {
	w.listing, w.exempts = w.k.Rules[p.family], condition{}
	if w.stage.legacy {
		w.listing = w.k.Legacy[p.family]
	}
	id := kernel.ChainID{Table: w.stage.table, Chain: hookNames[w.hook]}
	w.inNAT = id.Table == "nat"
	if w.skipsNAT(p) {
		return true
	}
	policy := func() string { return command(p.family, fmt.Sprintf("-t %s -P %s DROP", id.Table, id.Chain)) }
	return w.end(w.chain(p, id, flow{certain: true}, 0), w.listing.Policies[id] == "DROP", policy, "no rule accepts the packet; the chain policy drops it")
}

// skipsNAT reports whether the packet does not pass a chain of table nat: only the first packet of a tracked connection does, until a rule
// changes the connection's source.
func (w *walk) skipsNAT(p *packet) bool {
	return w.inNAT && (p.tracking != trackedNew || w.masquerades != "")
}

func (w *walk) end(e end, drops bool, policy func() string, says string) bool {
	if e != accepted && e != stopped && drops {
		e = w.stop(shown{text: policy()}, flow{certain: true}, says)
	}
	return e != stopped
}

// chain walks the rules of a chain. If an unknown match led to the chain, none of its rules is certain to apply. The
// same is true for rules that follow a rule that may have ended the walk through the chain.
func (w *walk) chain(p *packet, id kernel.ChainID, f flow, depth int) end {
	if depth > maxDepth {
		return continues
	}
	rules := w.listing.Rules[id]
	for i := range rules {
		saved := &rules[i]
		a, unknown := evaluate(saved.Rule, w.k, p, w.place)
		if a == no {
			continue
		}
		on := f.only(a, unknown)
		e := w.act(p, saved, on, depth)
		if e == returned && w.inNAT && saved.Tag == "" && slices.ContainsFunc(rules[i:], func(r kernel.SavedRule) bool { return r.Tag != "" }) {
			w.meddlers = append(w.meddlers, shownRule(p, saved).object())
		}
		if e == returned && !on.certain {
			f = flow{on: f.on.and(on.on)}
			continue
		}
		if e != continues {
			return e
		}
	}
	return returned
}

// act applies a matching rule. If the match is uncertain, act only records the rule.
func (w *walk) act(p *packet, saved *kernel.SavedRule, f flow, depth int) end {
	r := shownRule(p, saved)
	switch v := saved.Rule.Verdict.(type) {
	case kernel.JumpTo:
		return called(w.chain(p, kernel.ChainID{Table: saved.Table, Chain: string(v)}, f, depth+1))
	case kernel.GoTo:
		return w.chain(p, kernel.ChainID{Table: saved.Table, Chain: string(v)}, f, depth+1)
	case kernel.Balance:
		return w.accept(r, f, "nftables balances the connection")
	case kernel.Final:
		return w.final(r, v, f)
	case kernel.Reject:
		return w.stop(r, f, "rejected with an immediate error to the client")
	case kernel.Masquerade:
		return w.masquerade(r, f, sourceNAT{})
	case kernel.SourceNAT:
		return w.masquerade(r, f, sourceOf(v))
	case kernel.SetZone:
		w.setZone(p, r, v, f)
	case kernel.NoTrack:
		w.notrack(p, r, f)
	case kernel.Redirect:
		return w.redirect(r, f)
	case kernel.OtherTarget:
		return w.other(r, f, "what the target "+string(v)+" does")
	default:
		w.changeMarks(p, r, saved.Rule.Verdict, f)
	}
	return continues
}

func called(e end) end {
	if e == returned {
		return continues
	}
	return e
}

func (w *walk) final(r shown, v kernel.Final, f flow) end {
	switch v {
	case kernel.Accept:
		return w.accept(r, f, "accepted; the remaining rules here are skipped")
	case kernel.Drop:
		return w.stop(r, f, "dropped without a reply to the client")
	}
	w.record(r, f, "returns to the calling chain", Passes)
	return returned
}

func (w *walk) accept(r shown, f flow, says string) end {
	w.record(r, f, says, Passes)
	if w.inNAT && !r.ours {
		w.meddlers = append(w.meddlers, r.object())
	}
	if f.certain {
		return accepted
	}
	w.exempts = w.exempts.and(f.on)
	return continues
}

// stop stops the packet. If an earlier rule may have accepted the packet, the answer depends on that rule.
func (w *walk) stop(r shown, f flow, says string) end {
	object := r.object()
	if !r.ours {
		w.foreign = append(w.foreign, object)
	}
	if f.certain && w.exempts.text == "" {
		w.record(r, f, says, Stops)
		return stopped
	}
	w.maybeStops = append(w.maybeStops, object)
	w.opaque = w.opaque || f.on.opaque || w.exempts.opaque
	if !f.certain {
		w.record(r, f, says, Stops)
		return continues
	}
	if r.why != "" {
		says = r.why + ": " + says
	}
	w.note(object, fmt.Sprintf("%s, unless it matches %s", says, w.exempts.text), Depends)
	return accepted
}

// foreignOf returns the object if it is another program's rule.
func (w *walk) foreignOf(object string) []string {
	if !slices.Contains(w.foreign, object) {
		return nil
	}
	return []string{object}
}

// other records a rule that explain cannot evaluate and that may stop the packet.
func (w *walk) other(r shown, f flow, what string) end {
	f.certain = false
	f.on = f.on.and(condition{what, true})
	return w.stop(r, f, "may be stopped")
}

func (w *walk) redirect(r shown, f flow) end {
	if w.place.arrives && w.place.leaves { // NETMAP changes the source in POSTROUTING
		return w.other(r, f, "what the rule does to the source")
	}
	how := w.stop(r, f, "redirected before an endpoint is selected")
	w.redirected = w.redirected || how == stopped
	return how
}

// changeMarks applies a verdict that changes the mark of the packet or its connection. If the match is uncertain, the
// changed bits become unknown.
func (w *walk) changeMarks(p *packet, r shown, v kernel.Verdict, f flow) {
	before := *p
	switch v := v.(type) {
	case kernel.SetMark:
		p.changeMark(kernel.ChangeMark{Invert: uint32(v), Mask: uint32(v)})
		p.wanted |= uint32(v)
	case kernel.FlipMark:
		p.changeMark(kernel.ChangeMark{Invert: uint32(v)})
	case kernel.ChangeMark:
		if p.changeMark(v); r.ours {
			p.wanted |= v.Invert & v.Mask
		}
	case kernel.RestoreMark:
		p.mark = p.mark&^v.Mask ^ p.ctMark&v.ConnectionMask
		p.markUnknown = p.markUnknown&^v.Mask | p.ctMarkUnknown&v.ConnectionMask
	case kernel.SaveMark:
		p.ctMark = p.ctMark&^v.ConnectionMask ^ p.mark&v.Mask
		p.ctMarkUnknown = p.ctMarkUnknown&^v.ConnectionMask | p.markUnknown&v.Mask
	case kernel.ChangeConnectionMark:
		p.ctMark, p.ctMarkUnknown = p.ctMark&^v.Mask^v.Invert, p.ctMarkUnknown&^v.Mask
	default:
		return
	}
	w.marked(p, before, r, f)
}

func (w *walk) marked(p *packet, before packet, r shown, f flow) {
	if changed := p.mark ^ before.mark | p.markUnknown&^before.markUnknown; changed != 0 {
		p.marker = r.object()
		if !r.ours && changed&p.wanted != 0 {
			w.meddlers = append(w.meddlers, p.marker)
		}
	}
	if !f.certain {
		p.markUnknown |= before.markUnknown | p.mark ^ before.mark
		p.ctMarkUnknown |= before.ctMarkUnknown | p.ctMark ^ before.ctMark
		p.mark, p.ctMark = before.mark, before.ctMark
		w.record(r, f, "the packet is marked", Passes)
		return
	}
	if p.mark != before.mark || p.ctMark == before.ctMark {
		w.record(r, f, fmt.Sprintf("the packet's mark is now 0x%x", p.mark), Passes)
	}
}

func (p *packet) changeMark(v kernel.ChangeMark) {
	p.mark, p.markUnknown = p.mark&^v.Mask^v.Invert, p.markUnknown&^v.Mask
}

// notrack has no effect on a packet that connection tracking has already processed.
func (w *walk) notrack(p *packet, r shown, f flow) {
	if !w.place.untracked {
		return
	}
	w.untracks = append(w.untracks, r.object())
	w.record(r, f, "connection tracking is disabled; the packet skips table nat, so it is not masqueraded", Passes)
	if f.certain {
		p.tracking = untracked
	}
}

func (e *explaining) walk() *walk { return &walk{k: e.k, quiet: e.quiet} }

// record adds a step with the rule's purpose and effect.
func (w *walk) record(r shown, f flow, says string, v Verdict) {
	if w.quiet && (v != Stops || !f.certain) {
		return
	}
	if r.why != "" {
		says = r.why + ": " + says
	}
	if !f.certain {
		says = "only if the packet matches " + f.on.text + ": " + says
		v = Depends
	}
	w.note(r.object(), says, v)
}

func (w *walk) note(object, says string, v Verdict) {
	w.steps = append(w.steps, Step{At: w.at(), Object: object, Message: says, Verdict: v})
}
