package explain

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// walk follows one packet through chains and records the rules that affect it.
type walk struct {
	k       *Kernel
	listing kernel.RuleListing
	at      string // the hook, for the steps
	steps   []Step
	// masquerades is the rule that masquerades the packet; depends lists the matches of rules that may masquerade it.
	masquerades string
	depends     []string
	maybeStops  []string
	// opaque is true if explain cannot evaluate whether one of maybeStops matches.
	opaque bool
	// untracks are the rules that disable connection tracking.
	untracks []string
	// redirected is true if a rule has changed the packet's destination.
	redirected bool
	// exempts are the matches of a rule that may have accepted the packet in this hook; if it did, later rules do not see the packet.
	exempts condition
}

// end is the way in which a packet leaves a chain.
type end uint8

const (
	continues end = iota // returns to the calling chain
	accepted             // accepted: the remaining rules of the hook are skipped
	stopped
)

// maxDepth bounds the nesting of chains. The kernel rejects loops, but a listing may be read while it changes.
const maxDepth = 16

func newWalk(k *Kernel, p *packet) *walk { return &walk{k: k, listing: k.Rules[p.family()]} }

// hook walks a built-in chain and its policy. It returns false if the packet was stopped.
func (w *walk) hook(p *packet, table, chain string) bool {
	w.at, w.exempts = table+" "+chain, condition{}
	id := kernel.ChainID{Table: table, Chain: chain}
	if table == "nat" && p.tracking != trackedNew {
		return true // only the first packet of a tracked connection passes through table nat
	}
	e := w.chain(p, id, true, condition{}, 0)
	if e == continues && w.listing.Policies[id] == "DROP" {
		w.note(fmt.Sprintf("-t %s -P %s DROP", table, chain), "no rule accepts the packet; the chain policy drops it", Stops)
		return false
	}
	return e != stopped
}

// chain walks the rules of a chain. If an unknown match led to the chain, no rule in it is certain.
func (w *walk) chain(p *packet, id kernel.ChainID, certain bool, entered condition, depth int) end {
	if depth > maxDepth {
		return continues
	}
	for _, saved := range w.listing.Rules[id] {
		a, unknown := evaluate(saved.Rule, w.k, p)
		if a == no {
			continue
		}
		if e := w.act(p, saved, certain && a == yes, entered.and(unknown), depth); e != continues {
			return e
		}
		if saved.Rule.Verdict == kernel.Return && certain && a == yes {
			return continues
		}
	}
	return continues
}

// act applies a rule that matches. A rule that only may match is recorded without effect.
func (w *walk) act(p *packet, saved kernel.SavedRule, certain bool, on condition, depth int) end {
	switch v := saved.Rule.Verdict.(type) {
	case kernel.JumpTo:
		return w.chain(p, kernel.ChainID{Table: saved.Table, Chain: string(v)}, certain, on, depth+1)
	case kernel.Balance:
		return w.accept(saved, certain, "nftables balances the connection", on)
	case kernel.Final:
		return w.final(saved, v, certain, on)
	case kernel.Reject:
		return w.stop(saved, certain, "rejected, the client gets an error immediately", on)
	case kernel.SetMark:
		w.changeMark(p, saved, kernel.ChangeMark{Invert: uint32(v), Mask: uint32(v)}, certain, on)
	case kernel.FlipMark:
		w.changeMark(p, saved, kernel.ChangeMark{Invert: uint32(v)}, certain, on)
	case kernel.ChangeMark:
		w.changeMark(p, saved, v, certain, on)
	case kernel.Masquerade:
		return w.masquerade(saved, certain, on)
	case kernel.NoTrack:
		w.notrack(p, saved, certain, on)
	case kernel.Redirect:
		how := w.stop(saved, certain, "redirected before an endpoint is selected", on)
		w.redirected = how == stopped
		return how
	}
	return continues
}

func (w *walk) final(saved kernel.SavedRule, v kernel.Final, certain bool, on condition) end {
	switch v {
	case kernel.Accept:
		return w.accept(saved, certain, "accepted, the remaining rules here are skipped", on)
	case kernel.Drop:
		return w.stop(saved, certain, "dropped, the client gets no reply", on)
	}
	w.leave(saved, certain, "returns to the calling chain", on)
	return continues
}

func (w *walk) accept(saved kernel.SavedRule, certain bool, says string, on condition) end {
	w.leave(saved, certain, says, on)
	if certain {
		return accepted
	}
	return continues
}

func (w *walk) leave(saved kernel.SavedRule, certain bool, says string, on condition) {
	w.record(saved, certain, says, Passes, on)
	if !certain {
		w.exempts = on
	}
}

// stop stops the packet. If an earlier rule may have accepted it, the answer depends on that rule.
func (w *walk) stop(saved kernel.SavedRule, certain bool, says string, on condition) end {
	if certain && w.exempts.text == "" {
		w.record(saved, true, says, Stops, on)
		return stopped
	}
	w.maybeStops = append(w.maybeStops, saved.String())
	w.opaque = w.opaque || on.opaque || w.exempts.opaque
	if !certain {
		w.record(saved, false, says, Stops, on)
		return continues
	}
	w.note(saved.String(), fmt.Sprintf("%s: %s, unless it matches %s", saved.Rule.Why, says, w.exempts.text), Depends)
	return accepted
}

func (w *walk) masquerade(saved kernel.SavedRule, certain bool, on condition) end {
	w.record(saved, certain, "the endpoint sees this node's address instead of the client's", Passes, on)
	if !certain {
		w.depends = append(w.depends, on.text)
		return continues
	}
	w.masquerades = saved.String()
	return accepted
}

func (w *walk) changeMark(p *packet, saved kernel.SavedRule, change kernel.ChangeMark, certain bool, on condition) {
	if !certain {
		w.record(saved, false, "the packet is marked", Passes, on)
		return
	}
	p.mark = p.mark&^change.Mask ^ change.Invert
	w.record(saved, true, fmt.Sprintf("the packet's mark is now 0x%x", p.mark), Passes, condition{})
}

// notrack disables connection tracking for the packet.
func (w *walk) notrack(p *packet, saved kernel.SavedRule, certain bool, on condition) {
	w.untracks = append(w.untracks, saved.String())
	w.record(saved, certain, "connection tracking is disabled; the packet skips table nat, so it is not masqueraded", Passes, on)
	if certain {
		p.tracking = untracked
	}
}

// record adds a step with the rule's reason and its effect.
func (w *walk) record(saved kernel.SavedRule, certain bool, says string, v Verdict, on condition) {
	if why := saved.Rule.Why; why != "" {
		says = why + ": " + says
	}
	if !certain {
		says = "only if the packet matches " + on.text + ": " + says
		v = Depends
	}
	w.note(saved.String(), says, v)
}

func (w *walk) note(object, says string, v Verdict) {
	w.steps = append(w.steps, Step{At: w.at, Object: object, Message: says, Verdict: v})
}
