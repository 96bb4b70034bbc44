package difftest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Wanting returns a checker for a sync whose wanted state is w. It also reports clients that pass but should be dropped, and clients that
// are dropped but should pass.
func (c *Checker) Wanting(w *diff.Target) *Checker {
	wanting := *c
	wanting.want = w
	return &wanting
}

// guardViolations lists the open ports without a wanted guard, and the allowed clients that are dropped.
func (v view) guardViolations() []string {
	if v.want == nil {
		return nil
	}
	var wrong []string
	for _, server := range v.want.Servers {
		for _, m := range server.Members {
			port := keyOf(m.Element)
			if m.Element.Protocol == 0 { // a guard of the whole address; openToAll checks these guards for all-ports servers
				port = server.Key
			}
			switch {
			case v.s.HasMember(m) || !v.open(port):
			case v.timing(m) == want.Guard:
				wrong = append(wrong, fmt.Sprintf("port %s is open but missing from %s", port, m.Set))
			case admits(m) && v.firewalled(port):
				wrong = append(wrong, KeptOut(m))
			}
		}
	}
	return wrong
}

// KeptOut describes the violation that a missing set entry causes: a guard drops clients that the entry would let pass.
func KeptOut(m kernel.Member) string {
	return fmt.Sprintf("%s is missing, and its port has a guard", m)
}

func (v view) missingGuards(key kernel.ServerKey) []string {
	if v.want == nil || v.want.Server(key) == nil {
		return nil
	}
	var missing []string
	for _, m := range v.want.Server(key).Members {
		if v.timing(m) == want.Guard && !v.s.HasMember(m) {
			missing = append(missing, m.Set)
		}
	}
	return missing
}

// guardStep is the part of Step that checks guards, and entries that let clients pass a guard.
func (v view) guardStep(m kernel.Member, deleted bool) string {
	if v.want == nil || !deleted {
		return ""
	}
	port := keyOf(m.Element)
	key := v.want.Match(port)
	switch {
	case admits(m) && v.firewalled(port) && !v.want.HasMember(m) && v.guardIsToGo(port):
		return "removed clients that may pass a guard while the guard still exists"
	case v.timing(m) != want.Guard || v.want.Foreign()[key] != nil:
		return ""
	case v.want.HasMember(m):
		return "removed a guard that is wanted"
	case v.want.Server(key) == nil && v.owned(port):
		return "removed the guard of an existing virtual server"
	case v.want.Server(key) != nil && v.entered(key) && !v.destinationsAreWanted(port):
		return "removed a guard before all destinations were open to every client"
	}
	return ""
}

// guardIsToGo reports whether the port should be open to every client.
func (v view) guardIsToGo(port kernel.ServerKey) bool {
	server := v.want.Server(v.want.Match(port))
	return server == nil || !slices.ContainsFunc(server.Members, func(m kernel.Member) bool { return isFirewall(m) && keyOf(m.Element) == port })
}

// destinationsAreWanted reports whether new connections reach only wanted endpoints. If any endpoint is wanted, they must reach at least
// one.
func (v view) destinationsAreWanted(port kernel.ServerKey) bool {
	matched := v.want.Match(port)
	wanted, found := v.want.Server(matched).Destinations, false
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

// A destination of an all-ports server has port 0.
func sameEndpoint(a, b kernel.Destination) bool {
	return a.Addr == b.Addr || a.Addr.Addr() == b.Addr.Addr() && min(a.Addr.Port(), b.Addr.Port()) == 0
}

func (v view) timing(m kernel.Member) want.Timing {
	set, _ := v.want.Set(m.Set)
	return set.Timing
}

func admits(m kernel.Member) bool { return strings.HasSuffix(m.Set, "-ALLOWED") }

func isFirewall(m kernel.Member) bool { return strings.HasSuffix(m.Set, "-FIREWALLED") }

func (v view) firewalled(key kernel.ServerKey) bool {
	return slices.ContainsFunc(v.base.Sets, func(set want.Set) bool {
		m := kernel.Member{Set: set.Name, Element: want.LedgerEntry(v.base.Ledger, key).Element}
		return isFirewall(m) && v.s.HasMember(m)
	})
}
