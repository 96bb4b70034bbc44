package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Sender is the kind of client at the start of a path.
type Sender string

// The senders.
const (
	fromNode    Sender = "this node"
	fromPod     Sender = "a pod"
	fromOutside Sender = "outside"
)

// Path leads from a client to a frontend that the agent serves.
type Path struct {
	explain.Question
	Service string
	Sender  Sender
	// Vital is true for Services that every pod needs.
	Vital bool
	// Open is true if doctor may open a connection from this node.
	Open bool
	kind view.Kind
}

// MaxPaths and MaxConnects limit the paths that doctor traces and the connections that it opens.
const (
	MaxPaths    = 64
	MaxConnects = 20
)

// outsiders are documentation addresses. doctor traces packets from them but sends none.
var outsiders = map[inet.Family]netip.Addr{inet.IPv4: netip.MustParseAddr("203.0.113.253"), inet.IPv6: netip.MustParseAddr("2001:db8::fffd")}

// Clients are the packets' senders besides this node: a pod of each family, if one is known, and an address outside.
func Clients(pods []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, family := range inet.Families {
		all = append(all, outsiders[family])
		if i := slices.IndexFunc(pods, func(pod netip.Addr) bool { return inet.FamilyOf(pod) == family }); i >= 0 {
			all = append(all, pods[i])
		}
	}
	return all
}

// Choice lists connections that Paths must include. Foreign rules may break them, or they are half-open.
type Choice struct {
	// Pods are addresses of pods on this node. Paths prefers the first ones as clients.
	Pods        []netip.Addr
	Connections []explain.Question
}

// includes reports whether one of the connections leads to the virtual server.
func (c Choice) includes(key kernel.ServerKey) bool {
	return slices.ContainsFunc(c.Connections, func(q explain.Question) bool { return q.To == key })
}

// Paths selects paths to the Services of a view. Services that every pod needs come first. For each Service, it selects the frontends of the
// chosen connections, and one frontend of each kind and family.
func Paths(v *view.View, c Choice) []Path {
	if v == nil {
		return nil
	}
	services := slices.SortedStableFunc(slices.Values(v.Services), func(a, b view.Service) int { return cmp.Compare(rank(a), rank(b)) })
	var chosen, all []Path
	for _, s := range services {
		for _, f := range s.Frontends {
			chosen = append(chosen, c.paths(s, f)...)
		}
		for _, f := range oneOfEach(s) {
			for _, p := range pathsTo(s, f, c.Pods) {
				if !among(chosen, p.Question) {
					all = append(all, p)
				}
			}
		}
	}
	return append(evenly(all, max(0, MaxPaths-len(chosen))), chosen...)
}

func among(paths []Path, q explain.Question) bool {
	return slices.ContainsFunc(paths, func(p Path) bool { return p.Question == q })
}

// paths returns the paths to a frontend if a chosen connection uses it, and the paths of these connections. It skips connections from this node and
// from the example of an outside client, because pathsTo includes them.
func (c Choice) paths(s view.Service, f view.Frontend) (paths []Path) {
	for _, q := range c.Connections {
		if !f.Is(q.To) || !examined(f) {
			continue
		}
		if len(paths) == 0 {
			paths = pathsTo(s, f, c.Pods)
		}
		example := q.From == q.To.Addr.Addr() || q.From == outsiders[q.To.Family()]
		if !example && allows(f, q.From) && !among(paths, q) {
			paths = append(paths, Path{Question: q, Service: s.ID(), Sender: c.sender(q), Vital: s.Vital(), kind: f.Kind})
		}
	}
	return paths
}

func (c Choice) sender(q explain.Question) Sender {
	switch {
	case q.From == q.To.Addr.Addr():
		return fromNode
	case slices.Contains(c.Pods, q.From):
		return fromPod
	}
	return fromOutside
}

// evenly selects up to limit paths that cover every kind of frontend, family and sender.
func evenly(all []Path, limit int) []Path {
	type sort struct {
		kind   view.Kind
		v4     bool
		sender Sender
	}
	count, turn := map[sort]int{}, make([]int, len(all))
	for i, p := range all {
		key := sort{p.kind, p.To.Addr.Addr().Is4(), p.Sender}
		turn[i] = count[key]
		count[key]++
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
	order = order[:min(len(order), limit)]
	slices.Sort(order)
	chosen := make([]Path, 0, len(order))
	for _, i := range order {
		chosen = append(chosen, all[i])
	}
	return chosen
}

func rank(s view.Service) int {
	if s.Vital() {
		return 0
	}
	return 1
}

// examined reports whether a frontend is served and has endpoints that get connections.
func examined(f view.Frontend) bool {
	return f.State == view.Served && !f.Address.Addr().IsLoopback() && slices.ContainsFunc(f.Endpoints, getsConnections)
}

// oneOfEach returns the first frontend of each kind and family. It prefers TCP.
func oneOfEach(s view.Service) []view.Frontend {
	type sort struct {
		kind   view.Kind
		family inet.Family
	}
	var all []view.Frontend
	at := map[sort]int{}
	for _, f := range s.Frontends {
		if !examined(f) {
			continue
		}
		key := sort{f.Kind, inet.FamilyOf(f.Address.Addr())}
		switch i, known := at[key]; {
		case !known:
			at[key], all = len(all), append(all, f)
		case all[i].Protocol != tcp && f.Protocol == tcp:
			all[i] = f
		}
	}
	return all
}

const tcp = "tcp"

// getsConnections reports whether new connections reach the endpoint.
func getsConnections(e view.Endpoint) bool {
	return e.State.GetsConnections() && e.Wanted != nil && *e.Wanted > 0
}

// pathsTo returns the paths to a frontend. Only pods and nodes use a ClusterIP.
func pathsTo(s view.Service, f view.Frontend, pods []netip.Addr) []Path {
	protocol, err := inet.ParseProtocol(f.Protocol)
	if err != nil {
		return nil
	}
	path := Path{Question: explain.Question{To: kernel.ServerKey{Addr: f.Address, Protocol: protocol}}, Service: s.ID(), Vital: s.Vital(), kind: f.Kind}
	var all []Path
	add := func(sender Sender, from netip.Addr) {
		path.Sender, path.From = sender, from
		path.Open = sender == fromNode && f.Protocol == tcp && len(f.SourceRanges) == 0
		all = append(all, path)
	}
	outside := []netip.Addr{outsiders[inet.FamilyOf(f.Address.Addr())]}
	if len(f.SourceRanges) == 0 {
		add(fromNode, f.Address.Addr()) // the kernel uses the address itself as the source
	}
	for _, r := range f.SourceRanges {
		outside = append(outside, r.Addr())
	}
	if pod := clientOf(f, pods); pod.IsValid() {
		add(fromPod, pod)
	}
	i := slices.IndexFunc(outside, func(addr netip.Addr) bool { return allows(f, addr) && !slices.Contains(pods, addr) })
	if f.Kind != view.ClusterIP && i >= 0 {
		add(fromOutside, outside[i])
	}
	return all
}

// allows reports whether the Service accepts connections from the address at the frontend.
func allows(f view.Frontend, from netip.Addr) bool {
	return len(f.SourceRanges) == 0 || slices.ContainsFunc(f.SourceRanges, func(r netip.Prefix) bool { return r.Contains(from) })
}

// clientOf returns a pod of the frontend's family. It prefers a pod that is not an endpoint, because an endpoint's
// packets may be balanced back to it.
func clientOf(f view.Frontend, pods []netip.Addr) (client netip.Addr) {
	for _, pod := range pods {
		switch {
		case pod.Is4() != f.Address.Addr().Is4() || !allows(f, pod):
		case !slices.ContainsFunc(f.Endpoints, func(e view.Endpoint) bool { return e.Address.Addr() == pod }):
			return pod
		case !client.IsValid():
			client = pod
		}
	}
	return client
}

// endpointsHere lists the endpoints that are pods on this node.
func endpointsHere(v *view.View) []netip.Addr {
	var pods []netip.Addr
	for _, e := range allEndpoints(v) {
		if addr := e.Address.Addr(); e.Node == v.Node.Name && !slices.Contains(v.Node.Addresses, addr) && !slices.Contains(pods, addr) {
			pods = append(pods, addr)
		}
	}
	return pods
}

// Walked combines a path with its explanation.
func Walked(p Path, x explain.Explanation) Walk {
	return Walk{Path: p, Verdict: x.Verdict, Causes: x.Causes}
}

// ToConnect lists the walks on which doctor opens a connection: one for each Service, and then the remaining frontends.
func ToConnect(walks []Walk) []int {
	var first, others []int
	seen := map[string]bool{}
	for i, w := range walks {
		switch {
		case !w.Open:
		case seen[w.Service]:
			others = append(others, i)
		default:
			seen[w.Service], first = true, append(first, i)
		}
	}
	all := append(first, others...)
	return all[:min(len(all), MaxConnects)]
}

// unfollowed lists the paths that could not be traced, with the reasons.
func unfollowed(f Facts) []string {
	switch {
	case f.View == nil: // checkAgent reports it
		return nil
	case len(f.Walks) == 0 && f.View.Totals.Services > 0:
		return []string{"paths of packets to Services: no Service in the sample is served and has a usable endpoint"}
	}
	return f.withoutPods()
}

// withoutPods lists the families of which doctor traced paths, but none from a pod.
func (f *Facts) withoutPods() (all []string) {
	traced, fromPods := map[inet.Family]bool{}, map[inet.Family]bool{}
	for _, w := range f.Walks {
		family := w.To.Family()
		traced[family], fromPods[family] = true, fromPods[family] || w.Sender == fromPod
	}
	for _, family := range inet.Families {
		if traced[family] && !fromPods[family] {
			all = append(all, fmt.Sprintf("paths from pods over %s: found no pod with such an address on this node, neither in the kernel nor among the "+
				"endpoints of the Services in the sample", family))
		}
	}
	return all
}

// checkVital finds Services that every pod needs but that have no served frontend with an endpoint.
func checkVital(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
	}
	var evidence []string
	for _, s := range f.View.Services {
		if !s.Vital() || slices.ContainsFunc(s.Frontends, examined) {
			continue
		}
		for _, at := range s.Frontends {
			evidence = append(evidence, fmt.Sprintf("%s at %s/%s: %s, %d endpoints", s.ID(), at.Address, at.Protocol, at.State, len(at.Endpoints)))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return finding.One(finding.Broken, "Services that every pod needs", "not served with a usable endpoint", examples(evidence),
		"inspect their pods: `kubectl -n NAMESPACE get pods,endpointslices`")
}

// checkPaths reports each cause that stops, or may stop, packets to Services, with the affected paths.
func checkPaths(f Facts) (found []finding.Finding) {
	var causes []*cause
	for _, w := range f.Walks {
		for _, e := range w.effects() {
			if _, problem := e.judge(""); problem != "" {
				causes = join(causes, e)
			}
		}
	}
	for _, c := range causes {
		found = append(found, c.finding(&f))
	}
	return found
}
