package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Explain follows the packet. v is nil where no agent answers.
func Explain(k *Kernel, v *view.View, base view.Base, q Question) Explanation {
	e := &explaining{
		k: k, q: q, base: base,
		out: Explanation{
			Address: q.To.Addr, Protocol: q.To.Protocol.String(), Reasons: []string{}, Steps: []Step{}, Endpoints: []Endpoint{},
		},
	}
	if q.From.IsValid() {
		e.out.From = q.From.String()
	}
	if v != nil {
		e.findFront(v)
	}
	e.follow()
	e.compare()
	e.out.Verdict = e.verdict()
	return e.out
}

// explaining is an explanation in the making.
type explaining struct {
	k     *Kernel
	q     Question
	base  view.Base
	front *view.Front // nil where no agent knows one
	asked bool        // an agent was asked
	out   Explanation
	// depends is set when some client, or a rule that is not understood, may make a difference.
	depends bool
	stopped bool
}

// findFront finds the front that has the place, or else one that would like to have it.
func (e *explaining) findFront(v *view.View) {
	e.asked = true
	for s := range v.Services {
		for i := range v.Services[s].Fronts {
			f := &v.Services[s].Fronts[i]
			if f.Address != e.q.To.Addr || f.Protocol != e.q.To.Protocol.String() || e.front != nil && f.State == view.Claimed {
				continue
			}
			e.front, e.out.Service, e.out.Kind = f, v.Services[s].ID(), string(f.Kind)
		}
	}
}

func (e *explaining) step(at, object, says string, v Verdict) {
	e.out.Steps = append(e.out.Steps, Step{at, object, says, v})
}

func (e *explaining) fail(at, object, says string) {
	e.step(at, object, says, Stops)
	e.reason("%s", says)
	e.stopped = true
}

func (e *explaining) reason(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(e.out.Reasons, text) {
		e.out.Reasons = append(e.out.Reasons, text)
	}
}

// follow takes the packet from the client to the endpoints.
func (e *explaining) follow() {
	p := newPacket(e.k, e.q)
	if !e.address(p) {
		return
	}
	e.sets(p)
	if !e.before(p) {
		return
	}
	server, stands := e.server()
	if !stands {
		return
	}
	e.endpoints(p, server)
}

// address: IPVS takes packets that are for this node itself.
func (e *explaining) address(p *packet) bool {
	addr := p.to.Addr()
	bound := kernel.BoundAddress{Addr: addr}
	switch {
	case p.sent && p.from.IsLoopback():
		e.fail("route", "ip route get "+addr.String()+" from "+p.from.String(), "a loopback address does not leave the node: the kernel refuses it as a source")
		return false
	case e.k.isVirtual(addr):
		e.step("address", "ip addr "+bound.String(), "the address is local to this node, so the packet is delivered here", Passes)
		return true
	case e.k.isNode(addr):
		e.step("address", addr.String(), "an address of this node's own", Passes)
		return true
	case !e.k.Device:
		e.fail("address", "ip link "+kernel.Device, "the device "+kernel.Device+" does not exist, so no virtual address is bound")
		return false
	}
	e.fail("address", "ip addr "+bound.String(),
		fmt.Sprintf("the address %s is not bound: neither %s nor another interface of this node has it, so the packet is routed away", addr, kernel.Device))
	return false
}

// sets are ours that have the address and port: the rules ask for them.
func (e *explaining) sets(p *packet) {
	var in []string
	for _, name := range slices.Sorted(maps.Keys(e.k.Sets)) {
		set := e.k.Sets[name]
		if set.Family == p.family() && (set.Type == kernel.HashIP || set.Type == kernel.HashIPPort) &&
			e.k.HasMember(kernel.Member{Set: name, Element: p.element(set.Type)}) {
			in = append(in, name)
		}
	}
	if len(in) == 0 {
		e.step("sets", "ipset list", "no set of ours has the address or the port", Passes)
		return
	}
	e.step("sets", "ipset test "+in[0]+" "+p.element(e.k.Sets[in[0]].Type).String(), "in "+strings.Join(in, ", "), Passes)
}

// before are the rules that judge the packet before IPVS does.
func (e *explaining) before(p *packet) bool {
	hooks := [][2]string{{"mangle", "PREROUTING"}, {"nat", "PREROUTING"}, {"mangle", "INPUT"}, {"filter", "INPUT"}}
	if p.sent { // IPVS meets these before the filter table does
		hooks = [][2]string{{"mangle", "OUTPUT"}, {"nat", "OUTPUT"}}
	}
	w := newWalk(e.k, p)
	for _, hook := range hooks {
		if !w.hook(p, hook[0], hook[1]) {
			e.take(w)
			last := w.steps[len(w.steps)-1]
			e.reason("%s stops it: %s; the rule is %s", last.At, last.Says, last.Object)
			e.stopped = true
			return false
		}
	}
	e.take(w)
	return true
}

// take takes over what a walk found.
func (e *explaining) take(w *walk) {
	e.out.Steps = append(e.out.Steps, w.steps...)
	for _, rule := range w.maybeStops {
		e.depends = true
		e.reason("this rule stops some clients, or may: %s", rule)
	}
}

// server is the virtual server that takes the packet.
func (e *explaining) server() (kernel.ObservedServer, bool) {
	server, stands := e.k.Servers[e.q.To]
	at := "ipvs"
	if !stands {
		e.fail(at, "ipvsadm -L "+e.q.To.String(), fmt.Sprintf("the kernel has no virtual server %s", e.q.To))
		return server, false
	}
	says := "its scheduler " + server.Scheduler + " chooses the endpoint"
	if !e.recorded() {
		says += "; the ledger does not have it: it is not ours"
		e.reason("the virtual server %s is not recorded as ours: somebody else made it, or the ledger entry is missing", e.q.To)
	}
	e.step(at, "ipvsadm -A "+server.Server.String(), says, Passes)
	return server, true
}

// recorded says whether a ledger has the virtual server.
func (e *explaining) recorded() bool {
	element := kernel.Element{Addr: e.q.To.Addr.Addr(), Protocol: e.q.To.Protocol, Port: e.q.To.Addr.Port()}
	return slices.ContainsFunc(e.base.Ledgers, func(set string) bool {
		return e.k.HasMember(kernel.Member{Set: set, Element: element})
	})
}

// endpoints are those a new connection may get, each with what happens on the way to it.
func (e *explaining) endpoints(p *packet, server kernel.ObservedServer) {
	open := slices.DeleteFunc(slices.Clone(server.Destinations), func(d kernel.ObservedDestination) bool { return !takes(d) })
	for _, d := range server.Destinations {
		if !takes(d) {
			e.step("ipvs", "ipvsadm -a "+server.Key.String()+" "+d.Destination.String(), whyNot(d), Passes)
		}
	}
	if bound, found := e.template(server, open); found {
		open = bound
	}
	if len(open) == 0 {
		e.fail("ipvs", "ipvsadm -L "+server.Key.String(), "no endpoint takes new connections"+e.whoIsThere())
		return
	}
	for _, d := range open {
		e.step("ipvs", "ipvsadm -a "+server.Key.String()+" "+d.Destination.String(), "may be chosen", Passes)
		e.reach(*p, d)
	}
	if len(e.out.Endpoints) == 0 {
		e.stopped = true
	}
}

func takes(d kernel.ObservedDestination) bool {
	return d.Weight > 0 && (d.Upper == 0 || d.Stats.Active+d.Stats.Inactive < d.Upper)
}

func whyNot(d kernel.ObservedDestination) string {
	if d.Weight == 0 {
		return "its weight is 0: it keeps its open connections and gets no new ones"
	}
	return fmt.Sprintf("it has reached its limit of %d connections", d.Upper)
}

// template is where affinity sends this client; an endpoint that takes no new connections does not hold it.
func (e *explaining) template(server kernel.ObservedServer, open []kernel.ObservedDestination) ([]kernel.ObservedDestination, bool) {
	if server.Flags&kernel.FlagPersistent == 0 {
		return nil, false
	}
	object := fmt.Sprintf("ipvsadm -A %s", server.Server)
	if !e.q.From.IsValid() {
		e.step("affinity", object, fmt.Sprintf("a client stays with its endpoint for %d s; give --from to see with which", server.Timeout), Passes)
		return nil, false
	}
	client, err := e.q.From.Prefix(int(server.MaskBits))
	if err != nil {
		return nil, false
	}
	for _, c := range e.k.Connections {
		if !isTemplate(c, server.Key, client.Addr()) {
			continue
		}
		i := slices.IndexFunc(open, func(d kernel.ObservedDestination) bool { return d.Addr == c.Destination })
		object = fmt.Sprintf("ipvsadm -Lnc: %s %s -> %s, %d s left", client, c.Virtual, c.Destination, c.Expires)
		if i < 0 {
			e.step("affinity", object, "the client's endpoint takes no new connections: it gets another", Passes)
			return nil, false
		}
		e.step("affinity", object, "the client stays with this endpoint", Passes)
		return open[i : i+1], true
	}
	e.step("affinity", object, fmt.Sprintf("no template for %s: it stays with the endpoint that it gets now, for %d s", client, server.Timeout), Passes)
	return nil, false
}

func isTemplate(c ipvs.Connection, key kernel.ServerKey, client netip.Addr) bool {
	return c.Client == netip.AddrPortFrom(client, 0) && c.Virtual == key.Addr
}

// reach follows the packet to one endpoint: IPVS has put its address into it.
func (e *explaining) reach(p packet, d kernel.ObservedDestination) {
	p.to = d.Addr
	w := newWalk(e.k, &p)
	for _, hook := range [][2]string{{"mangle", "OUTPUT"}, {"filter", "OUTPUT"}, {"mangle", "POSTROUTING"}, {"nat", "POSTROUTING"}} {
		if hook[0] == "mangle" && hook[1] == "OUTPUT" && p.sent {
			continue // it has been there already, before IPVS
		}
		if !w.hook(&p, hook[0], hook[1]) {
			last := w.steps[len(w.steps)-1]
			e.takeOnce(w)
			e.depends = true
			e.reason("packets to the endpoint %s are stopped: %s; the rule is %s", d.Addr, last.Says, last.Object)
			return
		}
	}
	e.takeOnce(w)
	shown := Endpoint{Address: d.Addr, Weight: d.Weight, Source: e.source(w)}
	if known := e.known(d.Addr); known != nil {
		shown.Pod, shown.Node = known.Pod, known.Node
	}
	e.out.Endpoints = append(e.out.Endpoints, shown)
}

// takeOnce is take without repeating steps that other endpoints share.
func (e *explaining) takeOnce(w *walk) {
	w.steps = slices.DeleteFunc(w.steps, func(s Step) bool { return slices.Contains(e.out.Steps, s) })
	e.take(w)
}

// source says whose address the endpoint sees.
func (e *explaining) source(w *walk) string {
	switch {
	case w.masquerades != "" && e.q.From.IsValid():
		return "this node"
	case w.masquerades != "" && e.someKeep():
		return "this node, for clients that no rule above lets keep their address"
	case w.masquerades != "":
		return "this node"
	case len(w.depends) > 0:
		return "the client, or this node: " + strings.Join(w.depends, "; ")
	}
	return "the client"
}

// someKeep says whether a rule may have let some clients pass before the one that masquerades.
func (e *explaining) someKeep() bool {
	return slices.ContainsFunc(e.out.Steps, func(s Step) bool {
		return s.Verdict == Depends && strings.HasPrefix(s.At, "nat ") && strings.Contains(s.Object, "-j ACCEPT")
	})
}

func (e *explaining) known(addr netip.AddrPort) *view.Endpoint {
	if e.front == nil {
		return nil
	}
	i := slices.IndexFunc(e.front.Endpoints, func(o view.Endpoint) bool { return o.Address == addr })
	if i < 0 {
		return nil
	}
	return &e.front.Endpoints[i]
}

func (e *explaining) verdict() Verdict {
	switch {
	case e.stopped:
		return Stops
	case e.depends:
		return Depends
	}
	return Passes
}
