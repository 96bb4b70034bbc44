package judge

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Rule is an intended difference. Its condition depends only on the objects and the client. If the condition holds,
// the values of both programs must be the expected ones.
type Rule struct {
	ID    string
	Kinds []Kind
	// Texts for docs/differences.md: the condition, the expected values, and the reason.
	When, KubeProxy, Ours, Why string
	// Fixes are issues in kubernetes/kubernetes.
	Fixes []int
	// Always is true if the programs differ whenever the condition holds.
	Always bool
	// AtMost is the maximum fraction of compared items that meet the condition. A rule that exceeds it is too broad.
	AtMost  float64
	applies func(*Case, Item) bool
	expects func(*Case, Item) bool
}

// Rules lists all intended differences. The first rule whose condition holds decides.
var Rules = []Rule{
	{
		ID:    "node-address",
		Kinds: []Kind{VirtualServer, BoundAddress},
		When: "A Service's external IP or load balancer IP is in another Node object, is not the ClusterIP of any Service, " +
			"and was not served before it was added to the Node object.",
		KubeProxy: "Serves it and binds it to kube-ipvs0: this node can no longer reach the other node.",
		Ours:      "Not served and not bound; reported as a Problem of the Service.",
		Why:       "Traffic between nodes takes precedence over a Service that claims a node's address.",
		Fixes:     []int{104679, 93175, 75290, 127410},
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			claims := c.concerned(i)
			return c.onOtherNode(i.addr()) && len(claims) > 0 && !hasField(claims, ClusterIP) && !bothServe(i)
		},
		expects: theirsOnly,
	},
	{
		ID:    "needed-port",
		Kinds: []Kind{VirtualServer, BoundAddress},
		When: "An external IP is an address of this node, or a load balancer IP is in its Node object, and this node needs that port itself " +
			"(ssh, etcd, API server, kubelet, controllers, and the agent's own).",
		KubeProxy: "Serves it: clients can no longer reach the node's own port.",
		Ours:      "Not served; reported as a Problem of the Service. Its other ports are served.",
		Why:       "A Service must not be able to close ports of the node.",
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			if i.Kind != BoundAddress {
				return c.needed(i.Key)
			}
			return len(c.addressClaims(i.addr())) > 0 && !slices.ContainsFunc(c.keysAt(i.addr()), func(k Key) bool { return !c.needed(k) })
		},
		expects: theirsOnly,
	},
	{
		ID:        "own-address-as-cluster-ip",
		Kinds:     []Kind{VirtualServer, BoundAddress},
		When:      "A ClusterIP is also the address of an interface of this node.",
		KubeProxy: "Serves it and binds it to kube-ipvs0: the node's own ports on that address are closed.",
		Ours:      "Not served and not bound; reported as a Problem of the Service.",
		Why:       "Without its own ports, the whole node is unusable. Without the ClusterIP, only one Service is.",
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			return c.interfaceIsClusterIP(i.addr()) && hasField(c.concerned(i), ClusterIP) && (i.Kind == BoundAddress || len(c.servable(i.Key)) == 0)
		},
		expects: theirsOnly,
	},
	{
		ID:        "node-port-at-a-cluster-ip",
		Kinds:     []Kind{Connection},
		When:      "A client connects to a node port on an address of this node's interface that is also a ClusterIP.",
		KubeProxy: "The client is refused, because kube-proxy treats the address as virtual. (A process on the node gets an answer.)",
		Ours:      "Served like a node port on any other address of the node.",
		Why:       "A Service must not be able to close ports of the node.",
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
		When:      "A range in nodePortAddresses contains an external IP or load balancer IP that is not an address of this node.",
		KubeProxy: "Also serves all node ports on that address after binding it to kube-ipvs0.",
		Ours:      "Serves node ports only on the node's own addresses.",
		Why:       "The address belongs to a single Service, or to another node.",
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
		KubeProxy: "Serves one of them, possibly with endpoints of another or of a deleted Service. The choice may change with every sync.",
		Ours: "The order of precedence is ClusterIP, node port, load balancer IP, external IP. Within a field, the oldest Service " +
			"wins, then the first by name. The other Services get a Problem.",
		Why:     "With a fixed rule, no Service can take an address away from the Service to which it was assigned.",
		AtMost:  0.15,
		applies: func(c *Case, i Item) bool { return c.contested(i.Key) && len(c.servable(i.Key)) > 0 },
		expects: (*Case).isWinners,
	},
	{
		ID:        "unfit-endpoint",
		Kinds:     []Kind{VirtualServer, Connection},
		When:      "An endpoint that a policy chooses has a multicast address, or is 255.255.255.255.",
		KubeProxy: "May choose the endpoint, which the kernel then rejects. If there is no other choice, the Service has no destination.",
		Ours:      "Reports a Problem of the Service and chooses among the other endpoints.",
		Why:       "An unusable endpoint must not take traffic away from usable ones.",
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
		When:      "An endpoint that kube-proxy chooses has an address that this node has bound for this or another Service.",
		KubeProxy: "Serves the endpoint. Connections reach the node itself: a process that listens on the port on all addresses, or no process.",
		Ours:      "Reports a Problem of the Service and excludes the endpoint as long as a Service claims its address.",
		Why:       "A process on the node must not answer for a Service, and an unusable endpoint must not break clients' connections.",
		Always:    true,
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && slices.ContainsFunc(c.theirDestinations(cl, i.v6()), func(d netip.AddrPort) bool { return c.bound(d.Addr()) })
		},
		expects: (*Case).asDue,
	},
	{
		ID:    "draining",
		Kinds: []Kind{Draining},
		When: "A TCP endpoint is removed while connections to it are open or closing. (The run sets --drain-timeout of kube-ipvs to a few " +
			"seconds, so that the timeout expires during the run.)",
		KubeProxy: "Keeps it with weight 0 until its last connection expires, and checks this once a minute. There is no time limit.",
		Ours:      "Keeps it with weight 0 until its last connection expires, but no longer than --drain-timeout (15 minutes).",
		Why:       "With kube-proxy, clients that keep reusing their source port keep the endpoint forever.",
		Fixes:     []int{81962},
		AtMost:    1,
		applies:   func(_ *Case, i Item) bool { return i.Key.Protocol == corev1.ProtocolTCP },
		expects:   func(_ *Case, i Item) bool { return i.KubeProxy.There != i.Ours.There },
	},
	{
		ID:        "internal-local-none",
		Kinds:     []Kind{VirtualServer},
		When:      "internalTrafficPolicy is Local, no usable endpoint is on this node, and the port has an external address or node port.",
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
		When:      "internalTrafficPolicy is Local, no usable endpoint is on this node, and a client connects to the ClusterIP.",
		KubeProxy: "An endpoint on another node answers (for exceptions, see the rule masquerade-source). Without an external address, the client is refused.",
		Ours:      "Dropped: the client times out. (A process on the node is refused by IPVS itself.)",
		Why:       "The policy promises that traffic stays on the node, and is otherwise dropped (KEP-2086).",
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
		When:      "externalTrafficPolicy is Local, and a process on the node connects to an external IP or load balancer IP.",
		KubeProxy: "The endpoint sees the virtual address as the client. An endpoint on another node cannot answer, because that node also has the address.",
		Ours:      "The endpoint sees the node and can answer from any node.",
		Why:       "A client inside the cluster cannot know which node has an endpoint.",
		Fixes:     []int{93456},
		AtMost:    0.20,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return i.Client == Host && sole && (cl.Field == Balancer || cl.Field == ExternalIP) && cl.local() && c.served(cl, Host, i.v6())
		},
		expects: func(c *Case, i Item) bool {
			cl, _ := c.sole(i.Key)
			theirs := i.KubeProxy.Reach.allSaw(AsVirtual)
			if c.noneLocal(cl, i.v6()) {
				theirs = i.KubeProxy.Reach.Outcome == TimedOut
			}
			return theirs && i.Ours.Reach.allSaw(AsNode)
		},
	},
	{
		ID:    "port-like-node-port",
		Kinds: []Kind{Connection},
		When: "A pod connects to a ClusterIP, or any client connects to a load balancer IP with externalTrafficPolicy Local, over TCP or UDP, " +
			"and the port's number is a node port (policy Cluster) of any Service of that family.",
		KubeProxy: "The endpoint sees the node, because kube-proxy's set of node ports matches a port on any address. (Over IPv6, see the rule masquerade-source.)",
		Ours:      "The endpoint sees the client. Packets from a client outside the cluster are dropped while all endpoints are on other nodes.",
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
			theirs := i.KubeProxy.Reach.allSaw(AsNode, AsVirtual) || i.v6() && i.KubeProxy.Reach.Outcome == TimedOut
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
		When:      "A client connects over SCTP and IPv4 to a port without endpoints.",
		KubeProxy: `ICMP "port unreachable", from IPVS or from a rule: the client is refused or times out.`,
		Ours:      `ICMP "protocol unreachable", from a rule: the client fails immediately. (Packets from a process on the node reach IPVS first, as with kube-proxy.)`,
		Why:       "The kernel's SCTP does not abort a connection because of \"port unreachable\" alone.",
		AtMost:    0.15,
		applies: func(c *Case, i Item) bool {
			return i.Key.Protocol == corev1.ProtocolSCTP && !i.v6() && c.withoutEndpoints(i)
		},
		expects: func(_ *Case, i Item) bool {
			return !i.KubeProxy.answered() && (i.Ours.Reach.Outcome == "unreachable" || i.Client == Host && !i.Ours.answered())
		},
	},
	{
		ID:        "outside-source-ranges",
		Kinds:     []Kind{Connection},
		When:      "A process on the node connects to a load balancer whose source ranges do not contain the node.",
		KubeProxy: "The client gets no answer: IPVS refuses connections to a port without endpoints, and a rule drops other packets, before or after IPVS.",
		Ours:      "The client gets no answer: a rule drops all packets before IPVS.",
		Why:       "How the connection fails must not depend on the endpoints, or on the node ports of other Services.",
		AtMost:    0.20,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && i.Client == Host && cl.Field == Balancer && !c.allowed(cl, Host, i.v6())
		},
		expects: func(_ *Case, i Item) bool { return !i.KubeProxy.answered() && !i.Ours.answered() },
	},
	{
		ID:    "masquerade-source",
		Kinds: []Kind{Connection},
		When: "A connection is masqueraded over IPv6: the client is not a pod, reaches itself, or uses an external address or node port " +
			"whose policy is Cluster.",
		KubeProxy: "The endpoint may see any address on kube-ipvs0, even of another Service: the kernel picks the longest matching prefix. An endpoint on another node cannot answer.",
		Ours:      "The endpoint sees the node. Addresses on kube-ipvs0 are marked deprecated, so that the kernel does not pick them.",
		Why:       "Every node has these addresses on its own kube-ipvs0, so another node's kernel delivers the answer locally.",
		AtMost:    0.50,
		applies: func(c *Case, i Item) bool {
			cl, sole := c.sole(i.Key)
			return sole && i.v6() && c.masqueraded(cl, i.Client, i.v6())
		},
		expects: func(c *Case, i Item) bool { return sameButSource(i.KubeProxy.Reach, i.Ours.Reach) },
	},
}

// Host is the client that represents a process on the node.
const Host = "node-1"

// concerned returns the claims on an item's key, or the claims on all ports of a bound address.
func (c *Case) concerned(i Item) []Claim {
	if i.Kind == BoundAddress {
		return c.addressClaims(i.addr())
	}
	return c.claims[i.Key]
}

// bothServe reports whether both programs serve an item. kube-ipvs continues to serve an address that is added to
// another Node object.
func bothServe(i Item) bool {
	if i.Kind == VirtualServer {
		return i.KubeProxy.Server != nil && i.Ours.Server != nil
	}
	return i.KubeProxy.There && i.Ours.There
}

func theirsOnly(_ *Case, i Item) bool {
	if i.Kind == VirtualServer {
		return i.KubeProxy.Server != nil && i.Ours.Server == nil
	}
	return i.KubeProxy.There && !i.Ours.There
}

// isWinners reports whether kube-ipvs uses the winner's destinations. kube-proxy may use those of any claimant, even
// a former one.
func (c *Case) isWinners(i Item) bool {
	winner := c.winner(i.Key)
	if i.Kind == Connection {
		return i.Ours.answered() == c.served(winner, i.Client, i.v6()) // kube-proxy may serve any claimant
	}
	return i.KubeProxy.Server != nil && i.Ours.leadsTo(c.ourDestinations(winner, i.v6()))
}

// interfaceIsClusterIP reports whether an address on an interface of this node is also a ClusterIP.
func (c *Case) interfaceIsClusterIP(a netip.Addr) bool {
	return slices.Contains(c.World.Interfaces, a) && hasField(c.addressClaims(a), ClusterIP)
}

// sameButSource reports whether the same servers answered but saw different sources: the node with kube-ipvs, a
// virtual address with kube-proxy. With a virtual address as source, connections may also time out.
func sameButSource(kubeProxy, ours Reach) bool {
	if kubeProxy.Outcome == TimedOut {
		return ours.allSaw(AsNode)
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
