package judge

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Rule is a difference that is meant. Its condition looks at the objects and the client only, never at what the programs made
// of them; what it expects of both is checked as well.
type Rule struct {
	ID    string
	Kinds []Kind
	// When, KubeProxy, Ours and Why are the condition and the expected values for readers.
	When, KubeProxy, Ours, Why string
	// Fixes are issues of kubernetes/kubernetes.
	Fixes []int
	// Always says that everything under the condition differs.
	Always bool
	// AtMost is the part of all that is compared that may be under the condition: a rule that speaks of more is too wide.
	AtMost  float64
	applies func(*Case, Item) bool
	expects func(*Case, Item) bool
}

// Rules are all the differences that are meant. The first one whose condition holds judges.
var Rules = []Rule{
	{
		ID:        "node-address",
		Kinds:     []Kind{VirtualServer, BoundAddress},
		When:      "An external IP or load balancer's address of a Service is an address of another Node object, and no Service's ClusterIP.",
		KubeProxy: "Serves it, and binds it to kube-ipvs0: this node can no longer reach the other one.",
		Ours:      "Not served and not bound.",
		Why:       "Traffic between nodes is worth more than a Service that claims it.",
		Fixes:     []int{104679, 93175, 75290, 127410},
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			claims := c.concerned(i)
			return c.elsewhere(i.addr()) && len(claims) > 0 && !hasField(claims, ClusterIP)
		},
		expects: theirsOnly,
	},
	{
		ID:        "own-address-as-cluster-ip",
		Kinds:     []Kind{VirtualServer, BoundAddress},
		When:      "A ClusterIP equals an address of an interface of this node.",
		KubeProxy: "Serves it, and binds it to kube-ipvs0: the node's own ports on that address are closed.",
		Ours:      "Not served and not bound; a Problem of the Service.",
		Why:       "A node that loses its own ports is lost to everybody, a Service without an address to its users.",
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			return c.interfaceIsClusterIP(i.addr()) && hasField(c.concerned(i), ClusterIP)
		},
		expects: theirsOnly,
	},
	{
		ID:        "node-port-at-a-cluster-ip",
		Kinds:     []Kind{Connection},
		When:      "A client connects to a node port at an address of this node's interface that is also a ClusterIP.",
		KubeProxy: "Refused, since the address counts as a virtual one. (A process of the node is answered.)",
		Ours:      "Like a node port at any other address of the node.",
		Why:       "No Service can close ports of the node.",
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			_, sole := c.sole(i.Key)
			return sole && c.interfaceIsClusterIP(i.addr()) && c.claims[i.Key][0].Field == NodePort
		},
		expects: func(c *Case, i Item) bool {
			cl, _ := c.sole(i.Key)
			if i.Client == Host {
				return sameButSource(i.KubeProxy.Reach, i.Ours.Reach)
			}
			return i.KubeProxy.Reach.Outcome != Answered && i.Ours.answered() == c.served(cl, i.Client, i.v6())
		},
	},
	{
		ID:        "node-port-at-a-virtual-address",
		Kinds:     []Kind{VirtualServer},
		When:      "nodePortAddresses names ranges, and one of them holds an external IP or load balancer's address that is no address of this node.",
		KubeProxy: "Serves all node ports there, too, once it has bound the address.",
		Ours:      "Serves node ports at the node's own addresses only.",
		Why:       "The address is that of one Service, or another node's.",
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			return len(c.claims[i.Key]) == 0 && c.hasNodePort(i.Key) && len(c.addressClaims(i.addr())) > 0 && !slices.Contains(c.World.Interfaces, i.addr()) &&
				slices.ContainsFunc(c.Set.NodePortRanges(i.v6()), func(r netip.Prefix) bool { return r.Contains(i.addr()) })
		},
		expects: theirsOnly,
	},
	{
		ID:        "contested",
		Kinds:     []Kind{VirtualServer, Connection},
		When:      "Several Services claim one address, port and protocol.",
		KubeProxy: "Serves any of them; which one may change with every sync.",
		Ours: "Serves a ClusterIP before a node port, a load balancer's address and an external IP; then the oldest one, and of equally " +
			"old ones the first by name; the others get a Problem.",
		Why:     "A fixed rule: nobody can take an address from the Service that it was given to.",
		AtMost:  0.15,
		applies: func(c *Case, i Item) bool { return c.contested(i.Key) },
		expects: (*Case).isWinners,
	},
	{
		ID:        "unfit-endpoint",
		Kinds:     []Kind{VirtualServer, Connection},
		When:      "An endpoint that a policy chooses has a multicast address, or is 255.255.255.255.",
		KubeProxy: "Counts it when it chooses among endpoints. The kernel refuses it: where it was the only choice, nothing is left.",
		Ours:      "Leaves it out, with a Problem of the Service, before it chooses.",
		Why:       "One bad endpoint must not cost the good ones their traffic.",
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && c.unfitCounts(cl, i.v6())
		},
		expects: func(c *Case, i Item) bool {
			cl, _ := c.sole(i.Key)
			if i.Kind == Connection {
				return i.KubeProxy.Reach.Outcome != Answered && i.Ours.answered() == c.served(cl, i.Client, i.v6())
			}
			return c.asDue(i)
		},
	},
	{
		ID:        "virtual-endpoint",
		Kinds:     []Kind{VirtualServer},
		When:      "An endpoint that kube-proxy chooses has an address that this node has bound for a Service: that one's own, or another one's.",
		KubeProxy: "Serves it. Its connections meet the node itself: a process that listens on that port at all addresses, or nobody.",
		Ours:      "Leaves it out, with a Problem of the Service, before it chooses. It serves again when no Service has the address any more.",
		Why:       "A node's process must not answer in a Service's name, and one bad endpoint must not cost clients their connections.",
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && slices.ContainsFunc(c.theirDestinations(cl, i.v6()), func(d netip.AddrPort) bool { return c.bound(d.Addr()) })
		},
		expects: (*Case).asDue,
	},
	{
		ID:        "draining",
		Kinds:     []Kind{Draining},
		When:      "A TCP endpoint leaves while connections to it are open or closing. (The run sets our --drain-timeout to some seconds, so that the end of it is seen.)",
		KubeProxy: "Keeps it with weight 0 until its last connection is forgotten, looked at once a minute, without a bound.",
		Ours:      "Keeps it with weight 0 until its last connection is forgotten, but no longer than --drain-timeout (15 minutes).",
		Why:       "Clients that reuse their port keep an endpoint of kube-proxy for ever.",
		Fixes:     []int{81962},
		AtMost:    1,
		applies:   func(_ *Case, i Item) bool { return i.Key.Protocol == corev1.ProtocolTCP },
		expects:   func(_ *Case, i Item) bool { return i.KubeProxy.There != i.Ours.There },
	},
	{
		ID:        "internal-local-none",
		Kinds:     []Kind{VirtualServer},
		When:      "internalTrafficPolicy is Local, no endpoint that can serve is on this node, and the port has an external address or node port.",
		KubeProxy: "The ClusterIP leads to the endpoints on other nodes.",
		Ours:      "The ClusterIP has no destination.",
		Why:       "The policy promises that traffic stays on the node (KEP-2086).",
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && cl.Field == ClusterIP && cl.local() && c.noneLocal(cl, i.v6()) && c.reachableFromOutside(cl, i.v6())
		},
		expects: func(c *Case, i Item) bool {
			cl, _ := c.sole(i.Key)
			return i.KubeProxy.leadsTo(c.theirDestinations(cl, i.v6())) && i.Ours.leadsTo(nil)
		},
	},
	{
		ID:        "internal-local-none-client",
		Kinds:     []Kind{Connection},
		When:      "The same, or without an external address; a client connects to the ClusterIP.",
		KubeProxy: "Answered by an endpoint on another node (unless the rule masquerade-source says why not); refused where the Service has no external address.",
		Ours:      "Dropped: the client runs into its timeout. (A process of the node is refused by IPVS itself.)",
		Why:       "The policy promises that traffic stays on the node (KEP-2086), and says that it is dropped.",
		AtMost:    0.20,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && cl.Field == ClusterIP && cl.local() && c.noneLocal(cl, i.v6())
		},
		expects: func(c *Case, i Item) bool {
			cl, _ := c.sole(i.Key)
			if i.KubeProxy.answered() && !c.reachableFromOutside(cl, i.v6()) {
				return false
			}
			return i.Ours.Reach.Outcome == TimedOut || i.Client == Host && !i.Ours.answered()
		},
	},
	{
		ID:        "external-local-host",
		Kinds:     []Kind{Connection},
		When:      "externalTrafficPolicy is Local; a process of the node connects to an external IP or load balancer's address.",
		KubeProxy: "The endpoint sees the virtual address as the client. From another node, which has that address as well, no answer comes.",
		Ours:      "The endpoint sees the node, and answers wherever it is.",
		Why:       "Inside the cluster, nobody can know which node has an endpoint.",
		Fixes:     []int{93456},
		AtMost:    0.20,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return i.Client == Host && sole && (cl.Field == Balancer || cl.Field == ExternalIP) && cl.local() && c.served(cl, Host, i.v6())
		},
		expects: func(c *Case, i Item) bool {
			cl, _ := c.sole(i.Key)
			theirs := i.KubeProxy.Reach.everybody(AsVirtual)
			if c.noneLocal(cl, i.v6()) {
				theirs = i.KubeProxy.Reach.Outcome == TimedOut
			}
			return theirs && i.Ours.Reach.everybody(AsNode)
		},
	},
	{
		ID:    "port-like-node-port",
		Kinds: []Kind{Connection},
		When: "A pod connects to a ClusterIP, or any client to a load balancer's address with externalTrafficPolicy Local, by TCP or UDP, " +
			"and the port's number is a node port (policy Cluster) of any Service of that family.",
		KubeProxy: "The endpoint sees the node: kube-proxy's set of node ports holds no addresses. (Over IPv6, see the rule masquerade-source.)",
		Ours:      "The endpoint sees the client. A client outside the cluster is dropped while all endpoints are on other nodes.",
		Why:       "Whether the source address is preserved must not depend on the node ports of other Services.",
		Fixes:     []int{132068},
		AtMost:    0.20,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			keeps := c.pod(i.Client) && cl.Field == ClusterIP || i.Client != Host && cl.Field == Balancer && cl.local()
			return sole && keeps &&
				i.Key.Protocol != corev1.ProtocolSCTP && c.nodePorts[portNumber{i.Key.Protocol, int32(i.Key.Addr.Port()), i.v6()}]
		},
		expects: func(c *Case, i Item) bool {
			cl, _ := c.sole(i.Key)
			theirs := i.KubeProxy.Reach.everybody(AsNode, AsVirtual) || i.v6() && i.KubeProxy.Reach.Outcome == TimedOut
			if !c.served(cl, i.Client, i.v6()) {
				return theirs && !i.Ours.answered()
			}
			for server, saw := range i.Ours.Reach.Seen {
				if saw != Itself && server != i.Client {
					return false
				}
			}
			return theirs && i.Ours.answered()
		},
	},
	{
		ID:        "sctp-refusal",
		Kinds:     []Kind{Connection},
		When:      "A client connects by SCTP over IPv4 to a port without endpoints.",
		KubeProxy: `ICMP "port unreachable", by IPVS or by a rule: the client is refused, or runs into its timeout.`,
		Ours:      `ICMP "protocol unreachable", by a rule: the client fails at once. (A process of the node meets IPVS first, as with kube-proxy.)`,
		Why:       "The kernel's SCTP does not give up a connection for \"port unreachable\" alone.",
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			return i.Key.Protocol == corev1.ProtocolSCTP && !i.v6() && c.withoutEndpoints(i)
		},
		expects: func(_ *Case, i Item) bool {
			return !i.KubeProxy.answered() && (i.Ours.Reach.Outcome == "unreachable" || i.Client == Host && !i.Ours.answered())
		},
	},
	{
		ID:        "masquerade-source",
		Kinds:     []Kind{Connection},
		When:      "A connection is masqueraded, over IPv6: the client is not a pod, meets itself, or uses an external address or node port whose policy is Cluster.",
		KubeProxy: "The endpoint may see an address of kube-ipvs0, any Service's: the kernel picks what is closest in bits. From another node no answer comes back.",
		Ours:      "The endpoint sees the node. Addresses on kube-ipvs0 are marked deprecated, which keeps the kernel from picking them.",
		Why:       "Another node has the same addresses on its own kube-ipvs0, and takes the answer for its own.",
		AtMost:    0.50,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && i.v6() && c.masqueraded(cl, i.Client, i.v6())
		},
		expects: func(c *Case, i Item) bool { return sameButSource(i.KubeProxy.Reach, i.Ours.Reach) },
	},
}

// Host is the client that is a process of the node.
const Host = "node-1"

// concerned are the claims on an item: on its key, or for an address on any of its ports.
func (c *Case) concerned(i Item) []Claim {
	if i.Kind == BoundAddress {
		return c.addressClaims(i.addr())
	}
	return c.claims[i.Key]
}

func theirsOnly(_ *Case, i Item) bool {
	if i.Kind == VirtualServer {
		return i.KubeProxy.Server != nil && i.Ours.Server == nil
	}
	return i.KubeProxy.There && !i.Ours.There
}

// isWinners wants our destinations to be the winner's, and kube-proxy's those of any claimant.
func (c *Case) isWinners(i Item) bool {
	winner := c.winner(i.Key)
	if i.Kind == Connection {
		return i.Ours.answered() == c.served(winner, i.Client, i.v6()) // whom kube-proxy serves is left to chance
	}
	if i.KubeProxy.Server == nil {
		return false
	}
	var anybodys []netip.AddrPort
	for _, cl := range c.claims[i.Key] {
		anybodys = append(anybodys, c.theirDestinations(cl, i.v6())...)
	}
	return subset(i.KubeProxy.Server.Serving(), anybodys) && i.Ours.leadsTo(c.ourDestinations(winner, i.v6()))
}

// interfaceIsClusterIP says whether an address of this node's interfaces is a ClusterIP as well.
func (c *Case) interfaceIsClusterIP(a netip.Addr) bool {
	return slices.Contains(c.World.Interfaces, a) && hasField(c.addressClaims(a), ClusterIP)
}

// sameButSource wants the same answers of the same servers, where we showed the node and kube-proxy a virtual address; or that
// kube-proxy got none for it.
func sameButSource(kubeProxy, ours Reach) bool {
	if kubeProxy.Outcome == TimedOut {
		return ours.everybody(AsNode)
	}
	if kubeProxy.Outcome != ours.Outcome || len(kubeProxy.Seen) != len(ours.Seen) {
		return false
	}
	for server, saw := range ours.Seen {
		if by := kubeProxy.Seen[server]; by != saw && (by != AsVirtual || saw != AsNode) {
			return false
		}
	}
	return true
}

func subset(few, many []netip.AddrPort) bool {
	return !slices.ContainsFunc(few, func(a netip.AddrPort) bool { return !slices.Contains(many, a) })
}
