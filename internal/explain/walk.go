package explain

import (
	"fmt"
	"slices"
	"strings"

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
		r := parse(saved.Args())
		a, unknown := r.evaluate(w.k, p)
		if a == no {
			continue
		}
		if e := w.act(p, saved, r, certain && a == yes, entered.and(unknown), depth); e != continues {
			return e
		}
		if r.target == "RETURN" && certain && a == yes {
			return continues
		}
	}
	return continues
}

// act applies a rule that matches. A rule that only may match is recorded without effect.
func (w *walk) act(p *packet, saved kernel.SavedRule, r rule, certain bool, on condition, depth int) end {
	to := kernel.ChainID{Table: saved.Table, Chain: r.target}
	if _, isChain := w.listing.Rules[to]; isChain {
		return w.chain(p, to, certain, on, depth+1)
	}
	switch r.target {
	case "BALANCE":
		w.leave(saved, r, certain, "nftables balances the connection", on)
		return ifCertain(certain, accepted)
	case "ACCEPT":
		w.leave(saved, r, certain, "accepted, the remaining rules here are skipped", on)
		return ifCertain(certain, accepted)
	case "RETURN":
		w.leave(saved, r, certain, "returns to the calling chain", on)
	case "DROP":
		return w.stop(saved, r, certain, "dropped, the client gets no reply", on)
	case "REJECT":
		return w.stop(saved, r, certain, "rejected, the client gets an error immediately", on)
	case "MARK":
		w.setMark(p, saved, r, certain, on)
	case "MASQUERADE", "SNAT":
		return w.masquerade(saved, r, certain, on)
	case "NOTRACK", "CT":
		w.notrack(p, saved, r, certain, on)
	case "DNAT", "REDIRECT", "TPROXY":
		how := w.stop(saved, r, certain, "redirected before an endpoint is selected", on)
		w.redirected = how == stopped
		return how
	}
	return continues
}

func ifCertain(certain bool, e end) end {
	if certain {
		return e
	}
	return continues
}

func (w *walk) leave(saved kernel.SavedRule, r rule, certain bool, says string, on condition) {
	w.record(saved, r, certain, says, Passes, on)
	if !certain {
		w.exempts = on
	}
}

// stop stops the packet. If an earlier rule may have accepted it, the answer depends on that rule.
func (w *walk) stop(saved kernel.SavedRule, r rule, certain bool, says string, on condition) end {
	if certain && w.exempts.text == "" {
		w.record(saved, r, true, says, Stops, on)
		return stopped
	}
	w.maybeStops = append(w.maybeStops, saved.String())
	w.opaque = w.opaque || on.opaque || w.exempts.opaque
	if !certain {
		w.record(saved, r, false, says, Stops, on)
		return continues
	}
	w.note(saved.String(), fmt.Sprintf("%s: %s, unless it matches %s", reason(r.comment), says, w.exempts.text), Depends)
	return accepted
}

func (w *walk) masquerade(saved kernel.SavedRule, r rule, certain bool, on condition) end {
	w.record(saved, r, certain, "the endpoint sees this node's address instead of the client's", Passes, on)
	if !certain {
		w.depends = append(w.depends, on.text)
		return continues
	}
	w.masquerades = saved.String()
	return accepted
}

// setMark parses the form in which iptables-save prints --or-mark, --xor-mark and --set-mark: clear the mask's bits, then flip
// the value's.
func (w *walk) setMark(p *packet, saved kernel.SavedRule, r rule, certain bool, on condition) {
	if len(r.options) < 2 || r.options[0] != "--set-xmark" {
		return
	}
	value, mask, err := parseMark(r.options[1])
	if err != nil || !certain {
		w.record(saved, r, false, "the packet is marked", Passes, on)
		return
	}
	p.mark = p.mark&^mask ^ value
	w.record(saved, r, true, fmt.Sprintf("the packet's mark is now 0x%x", p.mark), Passes, condition{})
}

// notrack disables connection tracking for the packet. (Other options of CT have no effect here.)
func (w *walk) notrack(p *packet, saved kernel.SavedRule, r rule, certain bool, on condition) {
	if r.target == "CT" && !slices.Contains(r.options, "--notrack") {
		return
	}
	w.untracks = append(w.untracks, saved.String())
	w.record(saved, r, certain, "connection tracking is disabled; the packet skips table nat, so it is not masqueraded", Passes, on)
	if certain {
		p.tracking = untracked
	}
}

// record adds a step with the reason from the rule's comment and the rule's effect.
func (w *walk) record(saved kernel.SavedRule, r rule, certain bool, says string, v Verdict, on condition) {
	if why := reason(r.comment); why != "" {
		says = why + ": " + says
	}
	if !certain {
		says = "only if the packet matches " + on.text + ": " + says
		v = Depends
	}
	w.note(saved.String(), says, v)
}

// reason returns the text of a comment after its tag. Comments of foreign rules have no tag.
func reason(comment string) string {
	if tag := kernel.TagOf(comment); tag != "" {
		return strings.TrimSpace(strings.TrimPrefix(comment, tag))
	}
	return comment
}

func (w *walk) note(object, says string, v Verdict) {
	w.steps = append(w.steps, Step{At: w.at, Object: object, Message: says, Verdict: v})
}
