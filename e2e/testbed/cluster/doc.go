// Package cluster provides a Kubernetes cluster's network inside one kernel: nodes, pods, outside clients and
// the router between them are network namespaces, connected by veth pairs. No Kubernetes component runs in it.
// Tests see the effect of an agent's virtual servers, sets and rules on real packets.
//
// Tests need neither virtual machines nor container images. The package provides clients and servers for TCP, UDP and
// SCTP in both families, precise connection outcomes, long-lived flows that measure interruptions, and dumps of the
// state after a failure.
//
// A test looks like this:
//
//	c := cluster.New(t, cluster.Config{Nodes: 2})
//	web := c.Nodes[1].Pod(t, "web-1")
//	web.Serve(t, cluster.TCP, 8080)
//
//	c.RouteServiceCIDRVia(t, c.Nodes[0])
//	c.Nodes[0].MustRun(t, "ipvsadm", "-A", "-t", "10.96.0.10:80")
//	// ...
//
//	got := c.Clients[0].Get(t, cluster.TCP, "10.96.0.10:80")
//	// got.Server == "web-1", got.Source == c.Nodes[0].V4
//	c.Clients[0].MustRefuse(t, cluster.UDP, "10.96.0.10:81")
//
// # The network
//
//	             198.51.100.0/24                  192.168.50.0/24
//	             2001:db8:51::/64                 fd00:50::/64
//	client-1 .11 ────┐                          ┌──── .11 node-1 ── pods 10.244.1.0/24
//	                 ├── bridge .1 ROUTER .1 bridge                      fd00:10:244:1::/64
//	client-2 .12 ────┘   "outside"   "underlay" └──── .12 node-2 ── pods 10.244.2.0/24
//	                                                                     fd00:10:244:2::/64
//
// Nodes share one layer-2 network and route each other's pod ranges without
// NAT. The router routes pod ranges to their node, so outside clients can
// reach pods. It has a route for the Service range only after RouteServiceCIDRVia.
// Each pod is connected to its node by a routed veth pair (as with Calico), or,
// with Config.Bridge, by a bridge cni0 with hairpin ports.
//
// The Service range (10.96.0.0/16 and fd00:10:96::/112) contains no address of this network. ICMP errors are not
// rate limited, so every refusal arrives.
//
// Everything that a call creates is usable when the call returns. The kernel's acknowledgment is not sufficient: it
// comes before an interface can send, and before neighbors can find an IPv6 address. A test that runs `ip -6 addr
// add` must wait until the address works.
//
// # How sockets get into a namespace
//
// A socket stays in the namespace where it was created. All servers and clients are therefore goroutines of the
// calling process: a thread enters the namespace only to create the socket. Only [Host.Run] and [Host.Start] start
// processes. [Cluster.Close] leaves no namespace, interface, process or goroutine behind.
//
// /proc/sys/net and /proc/thread-self/net show the thread's namespace. /sys/class/net shows the namespace in which
// sysfs was mounted.
//
// # Traffic
//
// A request is a number on a line. The answer is one line with the addresses that the server's socket saw:
//
//	<number> <server's name> <source ip:port> <destination ip:port>
//
// The format is the same for TCP, UDP and SCTP, so netcat works as a client. The outcomes of failed requests
// ([Refused], [Timeout], [Unreachable], [Reset], [Filtered]) indicate different bugs. A UDP probe is one datagram and
// is not retransmitted.
//
// The package needs root and a kernel with network namespaces, veth and bridge.
package cluster
