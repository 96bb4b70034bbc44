package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// endpoints follows the packet to each endpoint that is eligible for a new connection.
func (e *explaining) endpoints(p *packet, server kernel.ObservedServer) {
	var usable, open []kernel.ObservedDestination
	sure := false
	for _, d := range server.Destinations {
		accepted := accepts(d)
		if d.Weight > 0 {
			usable = append(usable, d)
		}
		if accepted != no {
			open, sure = append(open, d), sure || accepted == yes
			continue
		}
		e.step(e.balancer(), e.shown("ipvsadm -a "+server.Key.String()+" "+d.Destination.String()), e.whyNot(d), Passes)
	}
	bound, found := e.template(server, usable)
	switch onlyKnown := server.Flags&kernel.FlagPersistent != 0 && !e.q.From.IsValid() && len(usable) > 0; {
	case found: // session affinity overrides the limit
		open = bound
	case len(open) == 0 && onlyKnown:
		open = usable
		e.reason(Depends, nil, "every endpoint is at its limit of connections: only clients that session affinity has assigned to one get connections")
	case len(open) == 0:
		e.fail(e.balancer(), e.shown("ipvsadm -L "+server.Key.String()), "no endpoint accepts new connections"+e.endpointStates())
		return
	case !sure:
		e.reason(Unclear, nil, "every remaining endpoint may refuse new connections: each may have reached its limit of connections earlier")
	case refusesHashed(server):
		e.reason(Depends, nil, "the scheduler %s refuses clients that it assigns to an endpoint at its limit of connections", server.Scheduler)
	}
	for _, d := range open {
		e.step(e.balancer(), e.shown("ipvsadm -a "+server.Key.String()+" "+d.Destination.String()), e.eligible(d, found), Passes)
		e.reach(*p, d)
	}
	if len(e.out.Endpoints) == 0 {
		e.conclude(Stops)
	}
}

// refusesHashed reports whether a scheduler assigns some clients to a destination that does not accept them, and then to no other.
func refusesHashed(s kernel.ObservedServer) bool {
	hashes := (s.Scheduler == "sh" || s.Scheduler == "mh") && s.Flags&kernel.FlagSched1 == 0 // the flag is sh-fallback or mh-fallback
	return hashes && slices.ContainsFunc(s.Destinations, func(d kernel.ObservedDestination) bool { return d.Weight > 0 && accepts(d) != yes })
}

// accepts reports whether a destination accepts new connections. The kernel does not show whether a destination below its limit has reached the
// limit earlier.
func accepts(d kernel.ObservedDestination) matchResult {
	switch open := uint64(d.Stats.Active) + uint64(d.Stats.Inactive); {
	case d.Weight == 0:
		return no
	case d.Upper == 0 || open < uint64(d.Resumes()) && open < uint64(d.Upper):
		return yes
	case open >= uint64(d.Upper):
		return no
	}
	return maybe
}

// eligible names the endpoint only if nftables balances. With IPVS, the ipvsadm command of the step already shows it. If bound is true, session
// affinity has assigned the client to the endpoint.
func (e *explaining) eligible(d kernel.ObservedDestination, bound bool) string {
	switch {
	case e.k.Mode.NFTablesBalances():
		return fmt.Sprintf("%s is eligible, with weight %d", d.Addr, d.Weight)
	case bound:
	case accepts(d) == no:
		return "eligible for clients that session affinity has assigned to it"
	case accepts(d) == maybe:
		return fmt.Sprintf("eligible, unless it reached its limit of %d connections and has not been below %d since", d.Upper, d.Resumes())
	}
	return "eligible"
}

func (e *explaining) whyNot(d kernel.ObservedDestination) string {
	switch {
	case d.Weight == 0 && e.k.Mode.NFTablesBalances():
		return fmt.Sprintf("%s has weight 0: it keeps its open connections and gets no new ones", d.Addr)
	case d.Weight == 0:
		return "weight 0: keeps its open connections and gets no new ones"
	}
	return fmt.Sprintf("at its limit of %d connections", d.Upper)
}

// template finds the endpoint that session affinity has assigned to this client, unless its weight is 0.
func (e *explaining) template(server kernel.ObservedServer, usable []kernel.ObservedDestination) ([]kernel.ObservedDestination, bool) {
	if server.Flags&kernel.FlagPersistent == 0 {
		return nil, false
	}
	records := e.affinityRecords(server)
	if !e.q.From.IsValid() {
		e.step("affinity", records.object, fmt.Sprintf("a client keeps its endpoint for %d s; use --from to see which one", server.Timeout), Passes)
		return nil, false
	}
	if e.couldNotRead(Connections) {
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
		i := slices.IndexFunc(usable, func(d kernel.ObservedDestination) bool {
			return d.Addr == c.Destination || server.Key == server.Key.AllPorts() && d.Addr.Addr() == c.Destination.Addr()
		})
		object := fmt.Sprintf(records.one, client, c.Virtual, c.Destination, c.Expires)
		if i < 0 {
			e.step("affinity", object, "the client's endpoint accepts no new connections; another endpoint is selected", Passes)
			return nil, false
		}
		e.step("affinity", object, "the client keeps this endpoint", Passes)
		return usable[i : i+1], true
	}
	e.step("affinity", records.object, fmt.Sprintf("no %s for %s; the client keeps the endpoint selected now%s for %d s",
		records.name, client, records.how, server.Timeout), Passes)
	return nil, false
}

// affinityRecords describes where the kernel records the endpoints of clients: the object, the format of a record, its name, and how an
// endpoint is selected if there is none.
type affinityRecords struct{ object, one, name, how string }

func (e *explaining) affinityRecords(server kernel.ObservedServer) affinityRecords {
	if e.k.Mode.NFTablesBalances() {
		list := "nft list map inet kube-ipvs " + kernel.ClientsMap(server.Key)
		return affinityRecords{list, list + ": %[1]s : %[3]s, %[4]d s left", "record", " at random"}
	}
	return affinityRecords{e.shown(fmt.Sprintf("ipvsadm -A %s", server.Server)), "ipvsadm -Lnc: %s %s -> %s, %d s left", "persistence template", ""}
}

func isTemplate(c kernel.Connection, key kernel.ServerKey, client netip.Addr) bool {
	return c.Client == netip.AddrPortFrom(client, 0) && leadsTo(c, key)
}

// reach follows the packet to one endpoint after IPVS has rewritten the destination, and then the endpoint's reply.
func (e *explaining) reach(p packet, d kernel.ObservedDestination) {
	if !e.reachable(&p, d.Addr) {
		return
	}
	p.to, p.out, p.translated = d.Addr, e.k.outInterface(d.Addr.Addr()), e.k.Mode.NFTablesBalances()
	w := e.walk()
	if !e.through(w, &p, e.after(&p), "packets to") || e.bypass(w, &p, d) || !e.returns(w, &p, d) {
		return
	}
	back := e.answer(&p, w)
	if !e.replyRouted(back, d.Addr) || !e.through(e.walk(), back, e.back(back, p.sent), "replies of") ||
		!e.sameZone(p.zone.reply, back.zone.reply, p.zone, back.zone, fmt.Sprintf("replies of endpoint %s", d.Addr)) || !e.laterPackets(&p, w, d) {
		return
	}
	shown := Endpoint{Address: d.Addr, Weight: d.Weight, Source: e.source(w, &p)}
	if known := e.known(d.Addr); known != nil {
		shown.Pod, shown.Node = known.Pod, known.Node
	}
	e.out.Endpoints = append(e.out.Endpoints, shown)
}

// answer returns the reply to a packet that has passed the hooks of a walk.
func (e *explaining) answer(p *packet, w *walk) *packet {
	back := p.answer(e.k, w.masquerades != "" || len(w.depends) > 0)
	back.toNode = w.masquerades != "" && len(e.k.NodeAddresses) > 0 && !slices.ContainsFunc(w.sources, func(n sourceNAT) bool { return e.k.isNodes(n) != yes })
	return back
}

// reachable checks the route to an endpoint.
func (e *explaining) reachable(p *packet, endpoint netip.AddrPort) bool {
	command := "ip route get " + endpoint.Addr().String()
	route, known := e.k.Routes[endpoint.Addr()]
	if mark := e.routingMark(p); mark != 0 {
		marked, found := e.k.Arrivals[Arrival{To: endpoint.Addr(), Mark: mark}]
		known = known && found
		if command += fmt.Sprintf(" mark 0x%x", mark); known && marked.Failure == "" && marked != route {
			e.reason(Unclear, nil, "a routing rule may send marked packets to endpoint %s elsewhere; commands: ip rule, %s", endpoint, command)
		}
		route = marked
	}
	if !known {
		e.couldNotRead(Routes)
	}
	if route.Failure == "" {
		return true
	}
	e.step("route", command, "the kernel drops packets to the endpoint: "+route.Failure, Stops)
	e.reason(Partly, nil, "packets to endpoint %s are stopped: the kernel drops them: %s; commands: ip rule, %s", endpoint, route.Failure, command)
	return false
}

// replyRouted checks the route of an endpoint's replies to the client. A masqueraded connection's replies go to this node.
func (e *explaining) replyRouted(back *packet, endpoint netip.AddrPort) bool {
	client := back.to.Addr()
	if back.sent || !client.IsValid() || e.k.IsLocal(client) {
		return true
	}
	route, known := e.k.Arrivals[Arrival{From: endpoint.Addr(), To: client}]
	away, found := e.k.Routes[client]
	if !known || !found {
		e.couldNotRead(Routes)
	}
	if route.Failure == "" || away.Interface == "" {
		return true
	}
	command := fmt.Sprintf("ip route get %s from %s iif %s", client, endpoint.Addr(), back.in)
	e.step("reply, route", command, "the kernel drops the endpoint's replies: "+route.Failure, Stops)
	e.reason(Partly, nil, "replies of endpoint %s are stopped: the kernel drops them: %s; commands: ip rule, %s", endpoint, route.Failure, command)
	return false
}

// through walks the hooks between the node and an endpoint. It returns false if the packet was stopped.
func (e *explaining) through(w *walk, p *packet, hooks []segment, what string) bool {
	passed := w.passAll(p, hooks)
	subject, endpoint := "the packet", p.to
	if p.reply {
		subject, endpoint = "the reply", netip.AddrPortFrom(p.from, p.port)
		for i := range w.steps {
			w.steps[i].At = "reply, " + w.steps[i].At
		}
	}
	last := Step{}
	if !passed {
		last = w.steps[len(w.steps)-1]
	}
	w.steps = slices.DeleteFunc(w.steps, func(s Step) bool { return slices.Contains(e.out.Steps, s) }) // drop steps that another endpoint has already added
	e.add(w, subject)
	if !passed {
		e.reason(Partly, w.foreignOf(last.Object), "%s endpoint %s are stopped: %s; rule: %s", what, endpoint, last.Message, last.Object)
	}
	return passed
}

// someExempt reports whether a rule may exempt some clients from masquerading.
func (e *explaining) someExempt() bool {
	return slices.ContainsFunc(e.out.Steps, func(s Step) bool {
		return s.Verdict == Depends && strings.HasPrefix(s.At, "nat ") && strings.Contains(s.Object, "-j ACCEPT")
	})
}

func (e *explaining) known(addr netip.AddrPort) *view.Endpoint {
	if e.frontend == nil {
		return nil
	}
	i := slices.IndexFunc(e.frontend.Endpoints, func(o view.Endpoint) bool { return o.Address == addr })
	if i < 0 {
		return nil
	}
	return &e.frontend.Endpoints[i]
}
