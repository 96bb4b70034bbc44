package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
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
	front *view.Frontend // nil where no agent knows one
	asked bool           // an agent was asked
	out   Explanation
	// depends is set when some client, or a rule that is not understood, may make a difference.
	depends bool
	stopped bool
	// unknown is set when what could not be read, or another proxy, may decide.
	unknown bool
}

// findFront finds the front that has the place, or else one that would like to have it.
func (e *explaining) findFront(v *view.View) {
	e.asked = true
	for s := range v.Services {
		for i := range v.Services[s].Frontends {
			f := &v.Services[s].Frontends[i]
			if f.Address != e.q.To.Addr || f.Protocol != e.q.To.Protocol.String() || e.front != nil && f.State == view.Conflict {
				continue
			}
			e.front, e.out.Service, e.out.Kind = f, v.Services[s].ID(), string(f.Kind)
		}
	}
}

func (e *explaining) step(at, object, says string, v Verdict) {
	e.out.Steps = append(e.out.Steps, Step{at, object, says, v})
}

func (e *explaining) stepOnce(at, object, says string, v Verdict) {
	if s := (Step{at, object, says, v}); !slices.Contains(e.out.Steps, s) {
		e.out.Steps = append(e.out.Steps, s)
	}
}

func (e *explaining) fail(at, object, says string) {
	e.step(at, object, says, Stops)
	e.reason("%s", says)
	e.stopped = true
}

// lacks is fail for what an agent makes: where none is known to work, another proxy may serve without it.
func (e *explaining) lacks(at, object, says string) {
	if e.works() {
		e.fail(at, object, says)
		return
	}
	if !e.untouched() { // whoever may not read the ipsets knows less, not more
		e.couldNotRead(Sets)
	}
	e.step(at, object, says, Unknown)
	e.unknown = true
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
	defer e.arrival(p)
	if !e.address(p) {
		return
	}
	existing, exists := e.connection()
	if exists {
		p.tracking, e.out.Connection = established, existing.Client.String()
	}
	e.others()
	e.sets(p)
	if !e.before(p) {
		return
	}
	server, stands := e.server(exists)
	switch {
	case !stands:
	case exists:
		e.goOn(p, server, existing)
	default:
		e.endpoints(p, server)
	}
}

// arrival says, first of all, by which interface the packet comes, if that was said, or asked for by a rule.
func (e *explaining) arrival(p *packet) {
	step := Step{At: "arrival", Object: "ip route get " + p.from.String(), Verdict: Passes}
	switch {
	case e.q.Interface != "" && p.sent:
		step.Object, step.Says = "ip route get "+e.q.To.Addr.Addr().String()+" from "+p.from.String(),
			"the client is this node, whose packets arrive by no interface: --interface says nothing about them"
	case e.q.Interface != "":
		step.Object, step.Says = "ip link show "+p.in, "the packet arrives by "+p.in
	case !p.arrivalAsked:
		return
	case p.in == "" && !p.from.IsValid():
		step.Object, step.Says = "ip route get CLIENT", "rules ask by which interface the packet arrives: give --from or --interface"
	case p.in == "":
		step.Says = "rules ask by which interface the packet arrives, and none leads back to the client: give --interface"
	default:
		step.Says = "taken to arrive by " + p.in + ", which leads back to the client; give --interface if it comes by another"
	}
	e.out.Steps = slices.Insert(e.out.Steps, 0, step)
}

// address: IPVS takes packets that are for this node itself.
func (e *explaining) address(p *packet) bool {
	addr := p.to.Addr()
	bound := kernel.BoundAddress{Addr: addr}
	switch {
	case e.unsure(Addresses):
		return true
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
		e.lacks("address", "ip link "+kernel.Device, "the device "+kernel.Device+" does not exist, so no virtual address is bound")
		return false
	}
	e.lacks("address", "ip addr "+bound.String(),
		fmt.Sprintf("the address %s is not bound: neither %s nor another interface of this node has it, so the packet is routed away", addr, kernel.Device))
	return false
}

// sets are ours that have the address and port: the rules ask for them.
func (e *explaining) sets(p *packet) {
	if e.unsure(Sets) {
		return
	}
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
	e.couldNotRead(Chains)
	if !e.chainsBefore(p) {
		return false
	}
	if e.unsure(Rules) {
		return true
	}
	hooks := received
	if p.sent { // IPVS meets these before the filter table does
		hooks = sent
	}
	w := newWalk(e.k, p)
	for _, hook := range hooks {
		if !w.hook(p, hook.table, hook.chain) {
			e.take(w)
			last := w.steps[len(w.steps)-1]
			e.reason("%s stops it: %s; the rule is %s", last.At, last.Says, last.Object)
			if w.redirected && !e.works() { // another proxy's rule
				e.unknown = true
			} else {
				e.stopped = true
			}
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
	for _, rule := range w.untracks {
		e.depends = true
		e.reason("this rule switches connection tracking off, without which nothing is masqueraded: %s", rule)
	}
}

// server is the virtual server that takes the packet.
func (e *explaining) server(exists bool) (kernel.ObservedServer, bool) {
	server, stands := kernel.Meets(e.k.Servers, e.q.To)
	at := "ipvs"
	if u, unread := e.k.Unread[Servers]; unread && u.Absent {
		e.lacks(at, "modprobe ip_vs", u.Why)
		return server, false
	}
	if e.unsure(Servers) {
		return server, false
	}
	if !stands {
		e.lacks(at, "ipvsadm -L "+e.q.To.String(), fmt.Sprintf("the kernel has no virtual server %s", e.q.To))
		return server, false
	}
	says := "its scheduler " + server.Scheduler + " chooses the endpoint"
	if exists {
		says = "the endpoint was chosen when the connection began"
	}
	if server.Key != e.q.To {
		says = "it is for all ports of the address that have none of their own; " + says
	}
	if !e.missing(Sets) && !e.recorded(server.Key) {
		says += "; the ledger does not have it: it is not ours"
		if !e.untouched() {
			e.reason("the virtual server %s is not recorded as ours: somebody else made it, or the ledger entry is missing", server.Key)
		}
	}
	e.step(at, "ipvsadm -A "+server.Server.String(), says, Passes)
	return server, true
}

// recorded says whether a ledger has the virtual server.
func (e *explaining) recorded(key kernel.ServerKey) bool {
	element := kernel.Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port()}
	return slices.ContainsFunc(e.base.Ledgers, func(set string) bool {
		return e.k.HasMember(kernel.Member{Set: set, Element: element})
	})
}

func (e *explaining) verdict() Verdict {
	switch {
	case e.stopped:
		return Stops
	case e.unknown:
		return Unknown
	case e.depends:
		return Depends
	}
	return Passes
}
