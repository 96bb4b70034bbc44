package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// compare adds the differences from the wanted state, which may stop this packet or a later one.
func (e *explaining) compare() {
	absent := e.couldNotRead(Servers) && e.k.Unread[Servers].Absent
	if absent || e.inactive() { // every object would differ
		e.compareFrontend()
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
	e.compareFrontend()
}

// compareSysctls skips the conntrack sysctls: they are only limits, and some machines do not permit the agent to set
// them.
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
		set, there := e.k.Sets[name]
		switch {
		case !strings.Contains(name, prefix):
		case !there:
			e.differs("the set %s is missing", name)
		case set.Stray:
			e.differs("the set %s has members that the agent cannot have written", name)
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

func (e *explaining) differs(format string, args ...any) {
	e.reason(Differs, nil, format+e.repair(), args...)
}

// repair describes who repairs a difference. Something may keep the agent from repairing it.
func (e *explaining) repair() string {
	switch {
	case !e.answered:
		return "; a running agent would repair it"
	case e.sinceAudit == "":
		return "; the agent's next audit repairs it"
	}
	return "; the agent's next audit repairs it, unless the last one, " + e.sinceAudit + " ago, could not"
}

// ipv6Off reports whether the address cannot be bound because IPv6 is disabled on kube-ipvs0.
func (e *explaining) ipv6Off(addr netip.Addr) bool { return addr.Is6() && e.k.IPv6Off() }

func (e *explaining) compareFrontend() {
	if e.frontend == nil {
		e.noFrontend()
		return
	}
	f := e.frontend
	e.explainState(f)
	if f.Server == "" { // another Service or program owns the frontend
		return
	}
	if addr := f.Address.Addr(); f.Bound && !e.missing(Addresses) && !e.k.isVirtual(addr) && !e.ipv6Off(addr) {
		e.differs("the address %s is not bound to %s", addr, kernel.Device)
	}
	for _, s := range f.SetEntries {
		if !e.missing(Sets) && !e.holds(s) {
			e.differs("the set %s lacks %s", s.Set, s.Entry)
		}
	}
	e.compareServer(f)
}

// explainState adds the reason if the frontend is not served to every client.
func (e *explaining) explainState(f *view.Frontend) {
	if f.State != view.Served && f.State != view.Missing {
		e.reason(Passes, nil, "%s: %s%s", f.State, stateText[f.State], withReason(f.Reason))
	}
	if f.Owner != "" {
		e.reason(Passes, nil, "the path leads to Service %s; Service %s is not served at this frontend", f.Owner, e.out.Service)
	}
	if from := e.q.From; e.verdicts[Stops] && from.IsValid() && len(f.SourceRanges) > 0 &&
		!slices.ContainsFunc(f.SourceRanges, func(r netip.Prefix) bool { return r.Contains(from) }) {
		e.reason(Passes, nil, "client %s is not in spec.loadBalancerSourceRanges %v", from, f.SourceRanges)
	}
}

func (e *explaining) compareServer(f *view.Frontend) {
	if e.missing(Servers) {
		return
	}
	server, stands := kernel.Match(e.k.Servers, e.q.To)
	if !stands {
		e.differs("the virtual server %s is missing", e.q.To)
		return
	}
	if f.State == view.ForeignServer {
		return
	}
	if !e.missing(Sets) && !e.recorded(server.Key) {
		e.differs("the owner record of %s is missing", server.Key)
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

// holds compares text because the view contains the entries as text.
func (e *explaining) holds(s view.SetEntry) bool {
	for element := range e.k.Members[s.Set] {
		if element.String() == s.Entry {
			return true
		}
	}
	return false
}

// active reports whether an agent responds or its sets exist. Every agent creates some sets, which stay in the kernel
// while the rules use them.
func (e *explaining) active() bool { return e.answered || len(e.k.Sets) > 0 }

// inactive reports whether no agent is active on this node. If the sets could not be read, active and inactive are both
// false.
func (e *explaining) inactive() bool {
	u, unread := e.k.Unread[Sets]
	return !e.active() && (!unread || u.Absent)
}

func (e *explaining) noFrontend() {
	switch {
	case e.inactive():
		e.reason(Passes, nil, "kube-ipvs is not active on this node: no agent responds, and none of its sets exists; "+
			"if Services work on this node, another proxy serves them, and explain shows only what IPVS does")
	case !e.answered:
		e.reason(Passes, nil, "the agent does not respond; the Service, its endpoints and the wanted state are unknown")
	case e.accepted:
		e.reason(Passes, nil, "the agent's process forwards connections to the node port of Service %s at another address of this node; explain that address instead", e.nodePort)
	case e.elsewhere:
		e.reason(Passes, nil, "no Service on this node has the address %s; explain traces only packets to Services", e.q.To.Addr.Addr())
	case e.nodePort == "":
		e.reason(Passes, nil, "no Service on this node has the frontend %s/%s", e.q.To.Addr, e.q.To.Protocol)
	}
}

var stateText = map[view.FrontendState]string{
	view.NoEndpoints:      "no endpoint of the Service accepts connections",
	view.NoLocalEndpoints: "all packets are dropped",
	view.InternalOnly:     "pods and this node are served by endpoints on other nodes; packets from all other clients are dropped",
	view.Conflict:         "another Service has this frontend",
	view.ForeignServer:    "the Service is not served at this frontend",
}

func withReason(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

func (e *explaining) endpointStates() string {
	if e.frontend == nil {
		return ""
	}
	if len(e.frontend.Endpoints) == 0 {
		return ": the Service has no endpoints"
	}
	var all []string
	for _, o := range e.frontend.Endpoints {
		all = append(all, fmt.Sprintf("%s is %s", o.Address, o.State))
	}
	return ": " + strings.Join(all, ", ")
}
