package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// compare names what is not as the agent wants it: it may be why the packet does not arrive, or why the next one will not.
func (e *explaining) compare() {
	absent := e.couldNotRead(Servers) && e.k.Unread[Servers].Absent
	if absent || e.untouched() { // nothing is as an agent wants it, which helps nobody to know
		e.compareFront()
		return
	}
	for _, c := range []struct {
		part    Part
		compare func()
	}{{Sysctls, e.compareSysctls}, {Sets, e.compareSets}, {Rules, e.compareRules}} {
		if !e.couldNotRead(c.part) {
			c.compare()
		}
	}
	e.compareFront()
}

// compareSysctls looks at those that decide over packets. Those of connection tracking are limits, which not every machine lets us
// set.
func (e *explaining) compareSysctls() {
	for _, s := range e.base.Sysctls {
		if strings.HasPrefix(s.Name, "net/netfilter/") {
			continue
		}
		if have := e.k.Sysctls[s.Name]; have != s.Value {
			e.differs("the sysctl %s is %q and must be %q", s.Name, have, s.Value)
		}
	}
}

func (e *explaining) compareSets() {
	prefix := fmt.Sprintf("-%d-", e.q.To.Family())
	for _, name := range e.base.Sets {
		if _, there := e.k.Sets[name]; !there && strings.Contains(name, prefix) {
			e.differs("the ipset %s is missing", name)
		}
	}
}

func (e *explaining) compareRules() {
	family := e.q.To.Family()
	for _, r := range e.base.Rules {
		if r.Family == family.String() && !e.k.hasRule(family, r) {
			e.differs("the rule %q is missing in %s %s (%s)", r.Why, r.Table, r.Chain, r.Rule)
		}
	}
}

// differs is a reason that makes the answer doubtful: the path is not the one that the agent set up.
func (e *explaining) differs(format string, args ...any) {
	e.depends = true
	repair := "; the agent's next audit repairs it"
	if !e.asked {
		repair = "; a running agent would repair it"
	}
	e.reason(format+repair, args...)
}

func (e *explaining) compareFront() {
	if e.front == nil {
		e.noFront()
		return
	}
	f := e.front
	if f.State != view.Served && f.State != view.Missing {
		e.reason("%s: %s%s", f.State, stateText[f.State], withReason(f.Reason))
	}
	if from := e.q.From; e.stopped && from.IsValid() && len(f.SourceRanges) > 0 &&
		!slices.ContainsFunc(f.SourceRanges, func(r netip.Prefix) bool { return r.Contains(from) }) {
		e.reason("spec.loadBalancerSourceRanges %v does not have the client %s", f.SourceRanges, from)
	}
	if f.Server == "" { // somebody else has the place: nothing of it is wanted
		return
	}
	if f.Bound && !e.missing(Addresses) && !e.k.isVirtual(f.Address.Addr()) {
		e.differs("the address %s is missing on %s", f.Address.Addr(), kernel.Device)
	}
	for _, s := range f.SetEntries {
		if !e.missing(Sets) && !e.holds(s) {
			e.differs("the ipset %s lacks %s", s.Set, s.Entry)
		}
	}
	e.compareServer(f)
}

func (e *explaining) compareServer(f *view.Frontend) {
	if e.missing(Servers) {
		return
	}
	server, stands := kernel.Meets(e.k.Servers, e.q.To)
	if !stands {
		e.differs("the virtual server %s is missing", e.q.To)
		return
	}
	if f.State == view.ForeignServer {
		return
	}
	if !e.missing(Sets) && !e.recorded(server.Key) {
		e.differs("the ledger lacks %s", server.Key)
	}
	if have := server.Server.String(); have != f.Server {
		e.differs("the virtual server is %q and must be %q", have, f.Server)
	}
	for _, want := range f.Endpoints {
		if want.Wanted == nil {
			continue
		}
		i := slices.IndexFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == want.Address })
		switch {
		case i < 0:
			e.differs("the destination %s of %s is missing", want.Address, e.q.To)
		case server.Destinations[i].Weight == 0 && *want.Wanted > 0:
			e.differs("the destination %s of %s has weight 0 and must have %d", want.Address, e.q.To, *want.Wanted)
		}
	}
}

// holds compares texts: the view is text.
func (e *explaining) holds(s view.SetEntry) bool {
	for element := range e.k.Members[s.Set] {
		if element.String() == s.Entry {
			return true
		}
	}
	return false
}

// works says that an agent answers or has left something: each has sets, whatever it serves, and its rules keep them there.
func (e *explaining) works() bool { return e.asked || len(e.k.Sets) > 0 }

// untouched says that no agent works here. It is less than the opposite of works: the sets may not have been readable.
func (e *explaining) untouched() bool {
	u, unread := e.k.Unread[Sets]
	return !e.works() && (!unread || u.Absent)
}

// noFront: no Service is there, or no agent to say so.
func (e *explaining) noFront() {
	switch {
	case e.untouched():
		e.reason("no agent of kube-ipvs works on this node: none answers, and no ipset of one is in the kernel; " +
			"if Services work here, another proxy serves them, of which only what concerns IPVS is explained")
	case !e.asked:
		e.reason("the agent does not answer: which Service this is, who its endpoints are and what is wanted is unknown")
	default:
		e.reason("no Service of this node is at %s/%s", e.q.To.Addr, e.q.To.Protocol)
	}
}

var stateText = map[view.FrontendState]string{
	view.NoEndpoints:      "the Service has no endpoint that takes connections",
	view.NoLocalEndpoints: "everybody is dropped",
	view.InternalOnly:     "pods and this node are served by endpoints elsewhere, all other clients are dropped",
	view.Conflict:         "another Service is served here",
	view.ForeignServer:    "the Service is not served here",
}

func withReason(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// whoIsThere lists the endpoints that do not take connections, with why.
func (e *explaining) whoIsThere() string {
	if e.front == nil {
		return ""
	}
	if len(e.front.Endpoints) == 0 {
		return ": the Service has none"
	}
	var all []string
	for _, o := range e.front.Endpoints {
		all = append(all, fmt.Sprintf("%s is %s", o.Address, o.State))
	}
	return ": " + strings.Join(all, ", ")
}
