package judge

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
)

// Expectation is the outcome that docs/services.md promises to a client.
type Expectation struct {
	Outcomes []string         // one of these
	Servers  []netip.AddrPort // one of these may answer
	Source   string           // the source that the server sees, unless it is the client's: Itself or AsNode
}

// Other outcomes of connections.
const (
	Refused     = "refused"
	Unreachable = "unreachable"
)

var anyRefusal = []string{Refused, Unreachable, TimedOut, "filtered"}

// Expect returns the outcome that the objects require. It returns false if the outcome also depends on earlier
// objects, or on a Service that the agent must reject.
func (c *Case) Expect(client string, key Key) (Expectation, bool) {
	cl, ok := c.Holder(key)
	if !ok || client == Host && key.Protocol == corev1.ProtocolSCTP { // the first packet would be too large (docs/known-limits.md)
		return Expectation{}, false
	}
	v6 := key.Addr.Addr().Is6()
	if outcomes := c.unanswered(cl, client, key); outcomes != nil {
		return Expectation{Outcomes: outcomes}, true
	}
	e := Expectation{Outcomes: []string{Answered}, Servers: c.ourDestinations(cl, v6), Source: Itself}
	if client == Host || cl.Field == ClusterIP && !c.pod(client) || cl.Field != ClusterIP && !cl.local() {
		e.Source = AsNode
	}
	return e, true
}

// unanswered returns the possible outcomes if no endpoint may serve the client, or else nil. Without endpoints, IPVS
// itself answers SCTP clients and processes on the node, in ways that depend on the kernel.
func (c *Case) unanswered(cl Claim, client string, key Key) []string {
	v6 := key.Addr.Addr().Is6()
	without := len(draw.Usable(c.fit(cl, v6))) == 0
	switch {
	case cl.Field == Balancer && !c.allowed(cl, client, v6), without && key.Protocol == corev1.ProtocolSCTP:
		return anyRefusal
	case c.served(cl, client, v6):
		return nil
	case client == Host:
		return anyRefusal
	case without:
		return []string{Refused}
	}
	return []string{TimedOut}
}

// Holder returns the claim that must be served for a key. It returns false if the objects alone do not determine the
// claim.
func (c *Case) Holder(key Key) (Claim, bool) {
	if len(c.claims[key]) == 0 || c.interfaceIsClusterIP(key.Addr.Addr()) {
		return Claim{}, false
	}
	cl := c.winner(key)
	addr := key.Addr.Addr()
	external := cl.Field == Balancer || cl.Field == ExternalIP
	guarded := external && slices.Contains(c.World.Interfaces, addr)
	if external && c.onOtherNode(addr) || guarded || c.needed(key) || slices.ContainsFunc(c.targets(cl, addr.Is6()), c.mayBeBound) {
		return Claim{}, false
	}
	return cl, true
}

// mayBeBound reports whether Services claim an endpoint's address that is also in another Node object. The result
// depends on whether the Service or the Node object had the address first.
func (c *Case) mayBeBound(t draw.Target) bool {
	a := t.Addr.Addr()
	return c.onOtherNode(a) && len(c.addressClaims(a)) > 0
}

// Wrong is a difference between the tables and the objects.
type Wrong struct {
	Service string // namespace/name; empty if the difference belongs to no Service
	Text    string
}

// Wrong returns the differences between a node's tables and the objects.
func (c *Case) Wrong(s State) (wrong []Wrong) {
	for key := range c.claims {
		cl, ok := c.Holder(key)
		if !ok {
			continue
		}
		want := c.ourDestinations(cl, key.Addr.Addr().Is6())
		if server := pointer(s.Servers, key); !(Value{Server: server}).leadsTo(want) {
			wrong = append(wrong, Wrong{cl.Service.ID(), Item{Kind: VirtualServer, Key: key}.Name() + " of " + cl.Service.ID() + ": " +
				Item{Kind: VirtualServer}.show(Value{Server: server}) + ", want " + joinAddrs(want)})
		}
	}
	for key := range s.Servers {
		if len(c.claims[key]) == 0 {
			wrong = append(wrong, Wrong{"", Item{Kind: VirtualServer, Key: key}.Name() + " that no Service claims"})
		}
	}
	for addr := range s.Bound {
		if len(c.addressClaims(addr)) == 0 {
			wrong = append(wrong, Wrong{"", Item{Kind: BoundAddress, Key: Key{Addr: netip.AddrPortFrom(addr, 0)}}.Name() + " that no Service claims"})
		}
	}
	slices.SortFunc(wrong, func(a, b Wrong) int { return strings.Compare(a.Text, b.Text) })
	return wrong
}

func joinAddrs(addrs []netip.AddrPort) (text string) {
	for _, a := range addrs {
		text += " " + a.String()
	}
	if text == "" {
		return "no destinations"
	}
	return text[1:]
}

// Keys returns all claimed addresses and ports, sorted.
func (c *Case) Keys() []Key {
	var keys []Key
	for key := range c.claims {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}
