package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

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
	if e.couldNotRead(Connections) {
		e.depends = true
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
		i := slices.IndexFunc(open, func(d kernel.ObservedDestination) bool {
			return d.Addr == c.Destination || server.Key == server.Key.AllPorts() && d.Addr.Addr() == c.Destination.Addr()
		})
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

func isTemplate(c kernel.Connection, key kernel.ServerKey, client netip.Addr) bool {
	return c.Client == netip.AddrPortFrom(client, 0) && c.Virtual == key.Addr
}

// reach follows the packet to one endpoint: IPVS has put its address into it.
func (e *explaining) reach(p packet, d kernel.ObservedDestination) {
	p.to, p.out = d.Addr, e.k.wayOut(d.Addr.Addr())
	if !e.chainsAfter(&p) {
		return
	}
	w := newWalk(e.k, &p)
	for _, hook := range onward(&p) {
		if !w.hook(&p, hook.table, hook.chain) {
			last := w.steps[len(w.steps)-1]
			e.takeOnce(w)
			e.depends = true
			e.reason("packets to the endpoint %s are stopped: %s; the rule is %s", d.Addr, last.Says, last.Object)
			return
		}
	}
	e.takeOnce(w)
	shown := Endpoint{Address: d.Addr, Weight: d.Weight, Source: e.source(w, &p)}
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
func (e *explaining) source(w *walk, p *packet) string {
	switch {
	case p.tracking == established:
		return "whoever it saw when the connection began"
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
