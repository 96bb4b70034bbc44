package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Explain traces the packet. v is nil if no agent responds.
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
		e.findFrontend(v)
	}
	if elsewhere := v.Elsewhere(k.Namespace); elsewhere != "" {
		e.step("kernel", "readlink /proc/self/ns/net", "not read, because it is not the agent's", Unknown)
		e.reason(Unknown, nil, "%s, where the agent's objects are not visible; run the command where the agent runs, or the agent in the node's own network namespace", elsewhere)
	} else {
		e.follow()
		e.compare()
	}
	e.out.Verdict = e.verdict()
	return e.out
}

type explaining struct {
	k        *Kernel
	quiet    bool // see walk
	q        Question
	base     view.Base
	frontend *view.Frontend // nil if no agent responds or no Service has the frontend
	nodePort string         // the Service with this node port
	// accepting are the loopback addresses on which the agent's process accepts connections to node ports.
	accepting []netip.Addr
	answered  bool // an agent responded
	// sinceAudit is the time since the agent's last full sync; empty if there was none.
	sinceAudit string
	out        Explanation
	// verdicts are those of the reasons, and of what needs no reason.
	verdicts map[Verdict]bool
	// elsewhere is set if kube-ipvs does not handle the packet.
	elsewhere bool
	// accepted is set if the agent's process accepts the connection.
	accepted bool
	// node is the name of this node. alone is the kernel without other programs' rules.
	node  string
	alone *Kernel
	// inbound is the first packet's way to IPVS. arrived are the later packets there; nil if they were stopped.
	inbound *walk
	arrived map[later]*packet
	// uncertain are the rules that may stop a packet and for which there is a reason.
	uncertain []string
}

// findFrontend finds the Service that serves the frontend, or, if there is none, a Service that lost the frontend to another one.
func (e *explaining) findFrontend(v *view.View) {
	e.answered, e.accepting, e.node = true, v.Node.LoopbackAddresses, v.Node.Name
	if last := v.Agent.LastFullSync; last != nil {
		e.sinceAudit = fmt.Sprintf("%.0f s", v.Time.Sub(last.Started).Seconds())
	}
	for s := range v.Services {
		for i := range v.Services[s].Frontends {
			f := &v.Services[s].Frontends[i]
			if f.Kind == view.NodePort && f.Address.Port() == e.q.To.Addr.Port() && f.Protocol == e.q.To.Protocol.String() {
				e.nodePort = v.Services[s].ID()
			}
			if !f.Is(e.q.To) || e.frontend != nil && f.State == view.Conflict {
				continue
			}
			e.frontend, e.out.Service, e.out.Kind, e.out.Owner = f, v.Services[s].ID(), string(f.Kind), f.Owner
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

func (e *explaining) follow() {
	p := newPacket(e.k, e.q)
	defer e.arrival(p)
	if !e.address(p) {
		return
	}
	existing, exists := e.connection()
	if exists {
		p.tracking, p.phase, e.out.Connection = established, acknowledges, existing.Client.String()
	}
	e.otherConnections()
	e.ipsets(p)
	if !e.beforeIPVS(p) {
		return
	}
	if !exists && e.marked(p) {
		return
	}
	server, found := e.server(exists)
	switch {
	case !found:
	case exists:
		e.existing(p, server, existing)
	default:
		e.endpoints(p, server)
	}
}

// arrival adds the incoming interface as the first step if the question names an interface or a rule tests it.
func (e *explaining) arrival(p *packet) {
	step := Step{At: "arrival", Object: "ip route get " + p.from.String(), Verdict: Passes}
	switch {
	case e.q.Interface != "" && p.sent:
		step.Object, step.Message = "ip route get "+e.q.To.Addr.Addr().String()+" from "+p.from.String(),
			"the client is this node itself; its packets have no incoming interface, so --interface has no effect"
	case e.q.Interface != "":
		step.Object, step.Message = "ip link show "+p.in, "the packet arrives on "+p.in
	case !p.arrivalAsked:
		return
	case p.in == "" && !p.from.IsValid():
		step.Object, step.Message = "ip route get CLIENT", "rules match the incoming interface; use --from or --interface"
	case p.in == "":
		step.Message = "rules match the incoming interface, and the node has no route to the client; use --interface"
	default:
		step.Message = "assumed to arrive on " + p.in + ", the interface of the route to the client; use --interface if the packet arrives on another"
	}
	e.out.Steps = slices.Insert(e.out.Steps, 0, step)
}

// address checks that the destination is local, because IPVS handles only local packets.
func (e *explaining) address(p *packet) bool {
	addr := p.to.Addr()
	switch {
	case e.required(Addresses):
		return true
	case p.sent && p.from.IsLoopback():
		e.fail("route", "ip route get "+addr.String()+" from "+p.from.String(), "the kernel rejects loopback addresses as the source of packets that leave the node")
		return false
	case e.k.isVirtual(addr):
		e.step("address", kernel.BoundAddress{Addr: addr, Binding: e.k.Addresses[addr]}.Listed(), "local to this node; the packet is delivered here", Passes)
		return e.routed(p)
	case addr.IsLoopback():
		e.loopback(p)
		return false
	case e.k.isNode(addr):
		e.step("address", addr.String(), "an address of this node", Passes)
		return e.routed(p)
	case !e.k.Device:
		e.absent("address", "ip link "+kernel.Device, "the device "+kernel.Device+" does not exist, so no virtual address is bound")
		return false
	}
	if e.answered && e.frontend == nil {
		e.elsewhere = true
		e.step("address", "ip route get "+addr.String(), "not an address of this node or of a Service; the packet is routed as usual", NoService)
		return false
	}
	because := ""
	if e.ipv6Off(addr) {
		because = ", because IPv6 is disabled there (sysctl " + kernel.IPv6Switch + " is 1)"
	}
	e.absent("address", "ip route get "+addr.String(),
		fmt.Sprintf("the address %s is not bound to %s or another interface of this node%s; the packet is routed away", addr, kernel.Device, because))
	return false
}

// routed checks that the kernel's routes and routing rules deliver the packet on this node. Any route will do for the node's own packets,
// because IPVS handles them before they leave. If nftables balances, it rewrites packets from other clients before they are routed, so routed
// does not check these.
func (e *explaining) routed(p *packet) bool {
	addr := p.to.Addr()
	object := "ip route get " + addr.String()
	route, known := e.k.Routes[addr]
	if !p.sent {
		object += " from " + p.from.String() + " iif " + p.in
		mark := e.routingMark(p)
		if mark != 0 {
			object += fmt.Sprintf(" mark 0x%x", mark)
		}
		route, known = e.k.Arrivals[Arrival{p.from, addr, mark}]
		known = known && p.from.IsValid() && !e.k.Mode.NFTablesBalances()
	}
	switch {
	case !known && p.from.IsValid():
		e.couldNotRead(Routes)
	case !known:
	case route.Failure != "":
		e.fail("route", object, "the kernel drops packets to "+addr.String()+": "+route.Failure+"; inspect the routing rules and routes: ip rule, ip route show table all")
		return false
	case !p.sent && !route.Local:
		e.fail("route", object, "the kernel forwards packets to "+addr.String()+" to "+route.Interface+" instead of delivering them here; inspect the routing rules "+
			"and local routes: ip rule, ip route show table local")
		return false
	}
	return true
}

// routingMark returns the mark of the first routing rule that the packet's mark matches, or 0.
func (e *explaining) routingMark(p *packet) uint32 {
	for _, rule := range e.k.Marks {
		switch markIs(p.mark, p.markUnknown, rule.Mark, rule.Mask) {
		case yes:
			return rule.Mark
		case maybe:
			e.reason(Unclear, nil, "a routing rule for the mark 0x%x may send the packet elsewhere, and explain cannot evaluate the packet's mark", rule.Mark)
		}
	}
	return 0
}

// loopback explains the path of a packet to a loopback address.
func (e *explaining) loopback(p *packet) {
	object := "ip route get " + p.to.Addr().String()
	if e.nodePort == "" {
		e.elsewhere = true
		e.step("address", object, "a loopback address; only processes on this node receive such packets", NoService)
		return
	}
	if slices.Contains(e.accepting, p.to.Addr()) {
		e.elsewhere, e.accepted = true, true
		e.step("address", object, "the agent's process accepts connections to node ports at this address and forwards them", NoService)
		return
	}
	e.fail("address", object, fmt.Sprintf("node ports are not served at loopback addresses, because the kernel drops packets from a loopback address that "+
		"leave the node; use another address of this node for the node port of Service %s, or add localhost to nodePortAddresses (all,localhost if it is empty)",
		e.nodePort))
}

// ipsets lists the agent's sets that contain the address or port. The rules match these sets.
func (e *explaining) ipsets(p *packet) {
	if e.required(Sets) {
		return
	}
	var in []string
	for _, name := range slices.Sorted(maps.Keys(e.k.Sets)) {
		set := e.k.Sets[name]
		if set.Family == p.family && (set.Type == kernel.HashIP || set.Type == kernel.HashIPPort) &&
			e.k.HasMember(kernel.Member{Set: name, Element: p.element(set.Type)}) {
			in = append(in, name)
		}
	}
	if len(in) == 0 {
		show := "ipset list"
		if e.k.Mode.RulesInNFTables() {
			show = "nft list sets table inet kube-ipvs"
		}
		e.step("sets", show, "none of the agent's sets contains the address or the port", Passes)
		return
	}
	object := "ipset test " + in[0] + " " + p.element(e.k.Sets[in[0]].Type).String()
	if e.k.Mode.RulesInNFTables() {
		object = "nft list set inet kube-ipvs " + in[0]
	}
	e.step("sets", object, "in "+strings.Join(in, ", "), Passes)
}

// otherChains makes the verdict unclear if an arriving packet may pass chains whose rules are not read.
func (e *explaining) otherChains(p *packet) {
	for _, c := range e.k.Chains {
		if c.Hook == kernel.HookOther && (c.Rules > 0 || c.Drops) && !p.sent {
			e.stepOnce("nftables", c.String(), "explain does not read this chain's rules", Unclear)
			e.reason(Unclear, []string{c.String()}, "rules that explain does not read may stop packets: %s", c)
		}
	}
}

// beforeIPVS walks the rules that the packet traverses before it reaches IPVS.
func (e *explaining) beforeIPVS(p *packet) bool {
	e.couldNotRead(Chains)
	e.couldNotRead(Legacy)
	e.otherChains(p)
	e.required(Rules)
	w := e.walk()
	e.inbound = w
	passes := w.passAll(p, e.before(p))
	if e.add(w, "the packet"); !passes {
		last := w.steps[len(w.steps)-1]
		verdict := Stops
		if w.redirected && !e.active() { // another proxy's rule
			verdict = Unknown
		}
		e.reason(verdict, w.foreignOf(last.Object), "stopped in %s: %s; rule: %s", last.At, last.Message, last.Object)
		return false
	}
	return p.sent || e.routingMark(p) == 0 || e.routed(p)
}

func (e *explaining) add(w *walk, what string) {
	e.out.Steps = append(e.out.Steps, w.steps...)
	e.mayStop(w, what, false)
	for _, chain := range w.unread {
		e.reason(Unclear, []string{chain}, "nftables rules may stop %s; explain does not evaluate them: %s", what, chain)
	}
	for _, rule := range w.untracks {
		e.reason(Depends, []string{rule}, "this rule disables connection tracking, and untracked packets are not masqueraded: %s", rule)
	}
}

// server returns the virtual server that the packet matches.
func (e *explaining) server(exists bool) (kernel.ObservedServer, bool) {
	server, stands := kernel.Match(e.k.Servers, e.q.To)
	at := e.balancer()
	if u, unread := e.k.Unread[Servers]; unread && u.Absent {
		e.absent(at, "modprobe ip_vs", u.Why)
		return server, false
	}
	if e.required(Servers) {
		return server, false
	}
	if !stands {
		e.absent(at, e.shown("ipvsadm -L "+e.q.To.String()), fmt.Sprintf("the kernel has no virtual server %s", e.q.To))
		return server, false
	}
	says := "scheduler " + server.Scheduler + " selects the endpoint"
	switch {
	case exists:
		says = "the endpoint was selected when the connection started"
	case e.k.Mode.NFTablesBalances():
		says = "nftables selects the endpoint at random, by weight"
	}
	if server.Key != e.q.To {
		says = "all-ports virtual server, used for ports that have no virtual server of their own; " + says
	}
	if !e.missing(Sets) && !e.recorded(server.Key) {
		says += "; not created by kube-ipvs: it has no owner record"
		if !e.inactive() {
			e.reason(Passes, nil, "the virtual server %s has no owner record: another program created it, or the record is missing", server.Key)
		}
	}
	e.step(at, e.shown("ipvsadm -A "+server.Server.String()), says, Passes)
	return server, true
}

func (e *explaining) balancer() string {
	if e.k.Mode.NFTablesBalances() {
		return "balancing"
	}
	return "ipvs"
}

// shown returns the command that shows a virtual server or its destinations: the given ipvsadm command, or an nft
// command if nftables balances.
func (e *explaining) shown(ipvsadm string) string {
	if e.k.Mode.NFTablesBalances() {
		return fmt.Sprintf("nft list map inet kube-ipvs slots%d", e.q.To.Family())
	}
	return ipvsadm
}

// recorded reports whether the virtual server has an owner record.
func (e *explaining) recorded(key kernel.ServerKey) bool {
	element := kernel.Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port()}
	return slices.ContainsFunc(e.base.Ledgers, func(set string) bool {
		return e.k.HasMember(kernel.Member{Set: set, Element: element})
	})
}

func (e *explaining) verdict() Verdict {
	switch {
	case e.elsewhere:
		return NoService
	case e.out.Owner != "":
		return Stops
	}
	return slices.MinFunc(slices.AppendSeq([]Verdict{Passes}, maps.Keys(e.verdicts)), Verdict.Compare)
}
