package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// walk takes one packet through chains, and notes the rules that mean something to it.
type walk struct {
	k       *Kernel
	listing kernel.RuleListing
	at      string // the hook, for the steps
	steps   []Step
	// masquerades is the rule that puts this node's address in place of the client's, and depends what that depends on.
	masquerades string
	depends     []string
	maybeStops  []string
	// untracks are the rules that switch connection tracking off.
	untracks []string
	// redirected says that a rule has sent the packet elsewhere.
	redirected bool
	// escapes is what lets packets out of this hook, where that is not known of this one: a rule behind it is not for them.
	escapes string
}

// end is how a chain let go of the packet.
type end uint8

const (
	goesOn  end = iota // back to the caller
	settled            // no further rule of this hook judges it
	stopped
)

// maxDepth bounds chains that call each other. The kernel has no loops, but a listing may be read while it changes.
const maxDepth = 16

func newWalk(k *Kernel, p *packet) *walk { return &walk{k: k, listing: k.Rules[p.family()]} }

// hook walks a built-in chain and its policy. It says whether the packet is still there.
func (w *walk) hook(p *packet, table, chain string) bool {
	w.at, w.escapes = table+" "+chain, ""
	id := kernel.ChainID{Table: table, Chain: chain}
	if table == "nat" && p.tracking != trackedNew {
		return true // it judges the first packet of a tracked connection only
	}
	e := w.chain(p, id, true, "", 0)
	if e == goesOn && w.listing.Policies[id] == "DROP" {
		w.note(fmt.Sprintf("-t %s -P %s DROP", table, chain), "no rule lets it through, and the policy of the chain drops it", Stops)
		return false
	}
	return e != stopped
}

// chain walks the rules of a chain. Where it was entered on a match that is not understood, nothing in it is sure.
func (w *walk) chain(p *packet, id kernel.ChainID, sure bool, unknown string, depth int) end {
	if depth > maxDepth {
		return goesOn
	}
	for _, saved := range w.listing.Rules[id] {
		r := parse(saved.Args())
		a, doubt := r.answer(w.k, p)
		if a == no {
			continue
		}
		doubt = strings.TrimSpace(unknown + " " + doubt)
		if e := w.act(p, saved, r, sure && a == yes, doubt, depth); e != goesOn {
			return e
		}
		if r.target == "RETURN" && sure && a == yes {
			return goesOn
		}
	}
	return goesOn
}

// act does what a rule that matches says. One that may match, or not, changes nothing, but is told.
func (w *walk) act(p *packet, saved kernel.SavedRule, r rule, sure bool, doubt string, depth int) end {
	to := kernel.ChainID{Table: saved.Table, Chain: r.target}
	if _, isChain := w.listing.Rules[to]; isChain {
		return w.chain(p, to, sure, doubt, depth+1)
	}
	switch r.target {
	case "ACCEPT":
		w.letGo(saved, r, sure, "no further rule here judges it", doubt)
		return whereSure(sure, settled)
	case "RETURN":
		w.letGo(saved, r, sure, "no further rule of this chain judges it", doubt)
	case "DROP":
		return w.stop(saved, r, sure, "dropped, the client hears nothing", doubt)
	case "REJECT":
		return w.stop(saved, r, sure, "refused, the client is told at once", doubt)
	case "MARK":
		w.setMark(p, saved, r, sure, doubt)
	case "MASQUERADE", "SNAT":
		return w.masquerade(saved, r, sure, doubt)
	case "NOTRACK", "CT":
		w.notrack(p, saved, r, sure, doubt)
	case "DNAT", "REDIRECT", "TPROXY":
		how := w.stop(saved, r, sure, "sent elsewhere before IPVS sees it", doubt)
		w.redirected = how == stopped
		return how
	}
	return goesOn
}

func whereSure(sure bool, e end) end {
	if sure {
		return e
	}
	return goesOn
}

func (w *walk) letGo(saved kernel.SavedRule, r rule, sure bool, says, doubt string) {
	w.tell(saved, r, sure, says, Passes, doubt)
	if !sure {
		w.escapes = doubt
	}
}

// stop ends the packet. Where some clients may have been let go before, the walk goes on for them.
func (w *walk) stop(saved kernel.SavedRule, r rule, sure bool, says, doubt string) end {
	if sure && w.escapes == "" {
		w.tell(saved, r, true, says, Stops, doubt)
		return stopped
	}
	w.maybeStops = append(w.maybeStops, saved.String())
	if !sure {
		w.tell(saved, r, false, says, Stops, doubt)
		return goesOn
	}
	w.note(saved.String(), fmt.Sprintf("%s: %s, unless it matches %s", reason(r.comment), says, w.escapes), Depends)
	return settled
}

func (w *walk) masquerade(saved kernel.SavedRule, r rule, sure bool, doubt string) end {
	w.tell(saved, r, sure, "the endpoint sees this node's address instead of the client's", Passes, doubt)
	if !sure {
		w.depends = append(w.depends, doubt)
		return goesOn
	}
	w.masquerades = saved.String()
	return settled
}

// setMark understands what save prints of --or-mark, --xor-mark and --set-mark: clear the mask's bits, then flip the value's.
func (w *walk) setMark(p *packet, saved kernel.SavedRule, r rule, sure bool, doubt string) {
	if len(r.options) < 2 || r.options[0] != "--set-xmark" {
		return
	}
	value, mask, err := parseMark(r.options[1])
	if err != nil || !sure {
		w.tell(saved, r, false, "the packet is marked", Passes, doubt)
		return
	}
	p.mark = p.mark&^mask ^ value
	w.tell(saved, r, true, fmt.Sprintf("the packet's mark is now 0x%x", p.mark), Passes, "")
}

// notrack switches connection tracking off for the packet. (CT has other uses, which change nothing here.)
func (w *walk) notrack(p *packet, saved kernel.SavedRule, r rule, sure bool, doubt string) {
	if r.target == "CT" && !slices.Contains(r.options, "--notrack") {
		return
	}
	w.untracks = append(w.untracks, saved.String())
	w.tell(saved, r, sure, "connections of this packet are not tracked: no rule of table nat judges it, so it is not masqueraded", Passes, doubt)
	if sure {
		p.tracking = untracked
	}
}

// tell notes what a rule does. The rule's own comment says why, where it has one.
func (w *walk) tell(saved kernel.SavedRule, r rule, sure bool, says string, v Verdict, doubt string) {
	if why := reason(r.comment); why != "" {
		says = why + ": " + says
	}
	if !sure {
		says = "only for packets that match " + doubt + ": " + says
		v = Depends
	}
	w.note(saved.String(), says, v)
}

// reason is what a comment says behind its tag. Other people's comments are told whole.
func reason(comment string) string {
	if tag := kernel.TagOf(comment); tag != "" {
		return strings.TrimSpace(strings.TrimPrefix(comment, tag))
	}
	return comment
}

func (w *walk) note(object, says string, v Verdict) {
	w.steps = append(w.steps, Step{At: w.at, Object: object, Says: says, Verdict: v})
}
