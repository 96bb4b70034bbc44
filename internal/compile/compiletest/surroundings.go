package compiletest

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Surroundings are a node's inputs besides Services: the addresses of its interfaces, and the nodes of the cluster.
type Surroundings struct {
	Addresses []netip.Addr
	Nodes     map[string]*model.Node
	// Left contains the frontends that an earlier agent left in the kernel.
	Left []compile.FrontendKey
	// Listeners are the sockets on which the node's processes listen.
	Listeners kernel.Listeners
}

// At returns the surroundings of a node with these addresses, without Node objects.
func At(addrs ...string) Surroundings {
	s := Surroundings{Nodes: map[string]*model.Node{}}
	for _, a := range addrs {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	return s
}

// Around draws surroundings from the small world.
func Around(t *rapid.T, label string) Surroundings { return Small.Surroundings(random(t, label)) }

// Surroundings returns random surroundings. The addresses are in random order, as on interfaces.
func (w World) Surroundings(r *rand.Rand) Surroundings {
	s := At()
	for _, i := range r.Perm(len(w.Own)) {
		if r.IntN(3) > 0 {
			s.Addresses = append(s.Addresses, netip.MustParseAddr(w.Own[i]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Nodes)) {
		if r.IntN(4) > 0 {
			s.Nodes[name] = w.node(name, r)
		}
	}
	return s
}

func (w World) node(name string, r *rand.Rand) *model.Node {
	n := &model.Node{Name: name, Zone: pick(r, append([]string{""}, w.Zones...))}
	if r.IntN(3) == 0 {
		n.WeightSet, n.Weight = true, uint32(r.IntN(3))
	}
	for _, a := range w.Nodes[name] {
		if r.IntN(4) > 0 {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
		}
	}
	return n
}

// NodesBetween returns the changes from one set of nodes to another.
func NodesBetween(from, to map[string]*model.Node) map[string]*model.Node { return between(from, to) }

// listeners never returns nil, because the sockets are known even if no process listens.
func (in Surroundings) listeners() kernel.Listeners {
	if in.Listeners == nil {
		return kernel.Listeners{}
	}
	return in.Listeners
}

// Cluster compiles Services in these surroundings from scratch.
func Cluster(cfg compile.Config, all map[model.ServiceID]*model.Service, in Surroundings) *compile.Cluster {
	c := compile.NewCluster(cfg)
	c.Apply(compile.Facts{Addresses: in.Addresses, Nodes: in.Nodes, Listeners: in.listeners(), Left: in.Left, Services: all}, want.NewTouched())
	return c
}

// Claimed lists the frontends that Services claim, except node ports.
func Claimed(c *compile.Cluster) (claimed []compile.FrontendKey) {
	for svc := range c.AllServices {
		for f := range svc.Frontends {
			if protocol, err := inet.ParseProtocol(f.Protocol); err == nil && f.Kind != view.NodePort {
				key := kernel.ServerKey{Addr: f.Address, Protocol: protocol}
				claimed = append(claimed, compile.FrontendKey{Key: key, ClusterIP: f.Kind == view.ClusterIP})
			}
		}
	}
	return claimed
}
