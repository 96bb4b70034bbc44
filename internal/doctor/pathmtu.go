package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// SmallEcho is the size of a small test packet in bytes, including headers.
const SmallEcho = 84

// maxPinged limits the other nodes to which doctor sends test packets. maxEchoes limits the endpoints on these nodes.
const (
	maxPinged = 4
	maxEchoes = 8
)

// Reply is the outcome of test packets of one size.
type Reply string

// The replies. TooBig means that an ICMP message limits the packet size, so path MTU discovery works.
const (
	Unsent   Reply = ""
	Answered Reply = "answered"
	Lost     Reply = "lost"
	TooBig   Reply = "too big"
)

// Echo contains the replies of an endpoint on another node to ICMP echo requests that routers must not fragment.
type Echo struct {
	Address netip.AddrPort
	// TCP is true if the endpoint serves TCP.
	TCP       bool
	Pod, Node string
	// Interface is the interface through which this node sends. Most is the largest MTU of the interfaces to pods on this node; 0 if no pod is known.
	Interface string
	Most      int
	// Size is the size of the large test packets. Pods send packets up to this size on this route.
	Size         int
	Small, Large Reply
	// Failure is the error that prevented the test.
	Failure string
}

// ReadNetwork finds the interfaces of this node and its default routes.
func (f *Facts) ReadNetwork(host Host) {
	h := reader{host, f}
	f.readInterfaces(h)
	f.noteMTU()
	f.readRoutes(h)
}

// Echoes selects ready endpoints on up to four other nodes. For each node, it selects at most one endpoint for each address family and interface. It
// prefers endpoints behind different interfaces.
func (f *Facts) Echoes() (all []Echo) {
	type way struct {
		node   string
		family inet.Family
		via    string
	}
	seen, most := map[way]bool{}, f.largestOfPods()
	nodes := func(w way) (n int) {
		known := map[string]bool{w.node: true}
		for _, e := range all {
			known[e.Node] = true
		}
		return len(known)
	}
	candidates := f.remoteEndpoints()
	for _, anyNode := range []bool{false, true} {
		for _, e := range candidates {
			w := way{e.Node, inet.FamilyOf(e.Address.Addr()), e.Interface}
			interfaceOnly := way{"", w.family, w.via}
			if seen[w] || seen[interfaceOnly] && !anyNode || len(all) == maxEchoes || nodes(w) > maxPinged {
				continue
			}
			e.Most = most
			seen[w], seen[interfaceOnly], all = true, true, append(all, e)
		}
	}
	return all
}

// remoteEndpoints lists the ready endpoints on other nodes to which this node has a route.
func (f *Facts) remoteEndpoints() (all []Echo) {
	for front, e := range allEndpoints(f.View) {
		route, known := f.Routes[e.Address.Addr()]
		if !known || route.Local || route.Failure != "" || e.Node == "" || e.Node == f.View.Node.Name || !getsConnections(e) {
			continue
		}
		all = append(all, Echo{Address: e.Address, TCP: front.Protocol == tcp && e.Address.Port() != 0, Pod: e.Pod, Node: e.Node, Interface: route.Interface})
	}
	return all
}

// largestOfPods returns the largest MTU of the interfaces to pods on this node.
func (f *Facts) largestOfPods() (mtu int) {
	for _, i := range f.Interfaces {
		if i.Up && f.podInterface(i) && !f.toNetwork(i) && slices.ContainsFunc(f.Pods, func(p kernel.Pod) bool { return p.Interface == i.Name }) {
			mtu = max(mtu, i.MTU)
		}
	}
	return mtu
}

func (e Echo) String() string {
	return fmt.Sprintf("%s (pod %s, node %s) through %s", e.Address.Addr(), cmp.Or(e.Pod, "unknown"), e.Node, e.Interface)
}

// unmeasured returns the reason why doctor does not know whether large packets reach the endpoint, or "" if it knows.
func (e Echo) unmeasured() string {
	switch {
	case e.Failure != "":
		return e.Failure
	case e.Small != Answered:
		return noEcho
	case e.Large == Unsent:
		return "no large packet was sent"
	}
	return ""
}

const noEcho = "the endpoints do not answer small ICMP echo requests, which a network policy may block"

// checkPathMTU finds paths to other nodes on which large packets are lost without an ICMP message.
func checkPathMTU(f Facts) []finding.Finding {
	var evidence []string
	for _, e := range f.Echoed {
		if e.unmeasured() == "" && e.Large == Lost {
			evidence = append(evidence, fmt.Sprintf("%s: it answers ICMP echo requests of %d bytes, but not of %d bytes", e, SmallEcho, e.Size))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "path MTU", "large packets to endpoints on other nodes get no answer, and no ICMP message says that they are too big; "+
		"small requests work, large ones hang", examples(evidence),
		"find the largest size that passes: `ping -M do -s SIZE ADDRESS` (a packet has SIZE bytes and 28 bytes of headers, with IPv6 48). Either let the network between the nodes "+
			"carry larger packets, or set the MTU of the interface, and of pods in the network plugin, to what passes. If a firewall drops ICMP messages of type 3 code 4 "+
			"(ICMPv6 type 2), let them through")
}

// unmeasuredPaths lists the nodes for which doctor could not test large packets. If the same reason applies to all of them, the text names no node,
// so that the reports of many nodes can be merged.
func unmeasuredPaths(f Facts) (unchecked []string) {
	reasons := map[string][]string{}
	var order []string
	unknown := 0
	for _, e := range f.Echoed {
		why := e.unmeasured()
		if why == "" {
			continue
		}
		unknown++
		if reasons[why] == nil {
			order = append(order, why)
		}
		if !slices.Contains(reasons[why], e.Node) {
			reasons[why] = append(reasons[why], e.Node)
		}
	}
	for _, why := range order {
		nodes := "other nodes"
		if unknown < len(f.Echoed) || len(order) > 1 {
			nodes = strings.Join(reasons[why], ", ")
		}
		unchecked = append(unchecked, fmt.Sprintf("large packets to %s: %s", nodes, why))
	}
	return unchecked
}
