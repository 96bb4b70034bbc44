package difftest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Wanting is the checker for the time when w is wanted: it also says who gets in that shall be kept out, and who is kept out
// that shall get in.
func (c *Checker) Wanting(w *want.State) *Checker {
	wanting := *c
	wanting.want = w
	return &wanting
}

// guardViolations lists the open ports that lack a guard, and the clients that are kept out though they are allowed.
func (v view) guardViolations() []string {
	if v.want == nil {
		return nil
	}
	var wrong []string
	for _, server := range v.want.Servers {
		for _, m := range server.Members {
			switch port := keyOf(m.Element); {
			case v.s.HasMember(m) || !v.open(port):
			case v.timing(m) == want.Guard:
				wrong = append(wrong, fmt.Sprintf("port %s is open, and not in %s", port, m.Set))
			case admits(m) && v.firewalled(port):
				wrong = append(wrong, KeptOut(m))
			}
		}
	}
	return wrong
}

// KeptOut is the violation that the clients of a member, who are allowed, are kept out. Where that member could not be written
// they are, until it is tried again.
func KeptOut(m kernel.Member) string {
	return fmt.Sprintf("%s is missing, and its port has a guard", m)
}

// missingGuards names the sets that shall stand before the port, and do not.
func (v view) missingGuards(key kernel.ServerKey) []string {
	if v.want == nil || v.want.Servers[key] == nil {
		return nil
	}
	var missing []string
	for _, m := range v.want.Servers[key].Members {
		if v.timing(m) == want.Guard && !v.s.HasMember(m) {
			missing = append(missing, m.Set)
		}
	}
	return missing
}

// guardStep says what is wrong with an operation on a member that stands before a port, or lets clients pass one that does.
func (v view) guardStep(m kernel.Member, deleted bool) string {
	if v.want == nil || !deleted {
		return ""
	}
	port := keyOf(m.Element)
	key := v.want.Match(port)
	switch {
	case admits(m) && v.firewalled(port) && !v.want.HasMember(m) && v.guardIsToGo(port):
		return "forgot who may pass a guard that still stands"
	case v.timing(m) != want.Guard || v.want.Foreign()[key] != nil:
		return ""
	case v.want.HasMember(m):
		return "removed a guard that is wanted"
	case v.want.Servers[key] == nil && v.owned(port):
		return "removed the guard of a virtual server that stands"
	case v.want.Servers[key] != nil && v.entered(key) && !v.destinationsAreWanted(port):
		return "removed a guard before the destinations were those that everybody may reach"
	}
	return ""
}

// guardIsToGo says whether no guard is wanted that the clients of the port would have to pass.
func (v view) guardIsToGo(port kernel.ServerKey) bool {
	server := v.want.Servers[v.want.Match(port)]
	return server == nil || !slices.ContainsFunc(server.Members, func(m kernel.Member) bool { return isFirewall(m) && keyOf(m.Element) == port })
}

// destinationsAreWanted says whether new connections go to endpoints that are wanted, and to some if there are some.
func (v view) destinationsAreWanted(port kernel.ServerKey) bool {
	matched := v.want.Match(port)
	wanted, found := v.want.Servers[matched].Destinations, false
	if _, exists := v.s.Servers[port]; exists {
		matched = port
	}
	for _, d := range v.s.Servers[matched].Destinations {
		if d.Weight == 0 {
			continue
		}
		found = true
		if !slices.ContainsFunc(wanted, func(w kernel.Destination) bool { return sameEndpoint(w, d.Destination) }) {
			return false
		}
	}
	return found || !slices.ContainsFunc(wanted, func(w kernel.Destination) bool { return w.Weight > 0 })
}

// sameEndpoint compares destinations where one may be for all ports.
func sameEndpoint(a, b kernel.Destination) bool {
	return a.Addr == b.Addr || a.Addr.Addr() == b.Addr.Addr() && min(a.Addr.Port(), b.Addr.Port()) == 0
}

func (v view) timing(m kernel.Member) want.Timing {
	set, _ := v.want.Set(m.Set)
	return set.Timing
}

// admits says whether the member lets clients pass a guard.
func admits(m kernel.Member) bool { return strings.HasSuffix(m.Set, "-ALLOWED") }

func isFirewall(m kernel.Member) bool { return strings.HasSuffix(m.Set, "-FIREWALLED") }

// firewalled says whether the port is for some clients only.
func (v view) firewalled(key kernel.ServerKey) bool {
	return slices.ContainsFunc(v.base.Sets, func(set want.Set) bool {
		m := kernel.Member{Set: set.Name, Element: want.LedgerEntry(v.base.Ledger, key).Element}
		return isFirewall(m) && v.s.HasMember(m)
	})
}
