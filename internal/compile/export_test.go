package compile

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Each of the following functions applies one fact and compiles the Services that it affects.

func (c *Cluster) SetAddresses(addrs []netip.Addr, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Addresses: append([]netip.Addr{}, addrs...)}, touched)
}

func (c *Cluster) SetNetwork(network kernel.Network, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Network: orEmpty(network)}, touched)
}

func (c *Cluster) SetSchedulers(has map[string]bool, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Schedulers: has}, touched)
}

func (c *Cluster) Reconfigure(settings Settings, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Settings: &settings}, touched)
}

func (c *Cluster) UpdateNodes(changed map[string]*model.Node, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Nodes: changed}, touched)
}

func (c *Cluster) SetAPIServer(contacts []netip.AddrPort, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{APIServer: contacts}, touched)
}

func (c *Cluster) SetVersion(v model.Version, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Version: v}, touched)
}

func (c *Cluster) SetLeft(left iter.Seq[FrontendKey], touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Left: slices.Collect(left)}, touched)
}

func (c *Cluster) SetListeners(listeners kernel.Listeners, touched *want.Touched) []model.ServiceID {
	return c.Apply(Facts{Listeners: orEmpty(listeners)}, touched)
}

func (c *Cluster) HealthPort(id model.ServiceID) HealthPort { return c.Served(id).Health }

func (c *Cluster) LoopbackPorts(id model.ServiceID) []model.LoopbackPort {
	return c.Served(id).Loopback
}

func orEmpty[M ~map[K]V, K comparable, V any](m M) M {
	if m == nil {
		return M{}
	}
	return m
}

func (c *Cluster) Remembered() int {
	v := c.node.virtual
	return len(c.asking) + len(c.node.claims) + len(c.node.atNodes) + len(v.frontends) + len(v.changed) + len(v.endpoints)
}

// Rejected counts the problems that the Cluster keeps for the rejected parts of a Service.
func (c *Cluster) Rejected(id model.ServiceID) int { return len(c.services[id].rejected) }

// UnsettledOfAll lists what Unsettled should list.
func (c *Cluster) UnsettledOfAll() (unsettled []FrontendKey) {
	for _, s := range c.services {
		some, _, _ := c.node.unsettled(s.service)
		unsettled = append(unsettled, some...)
	}
	return unsettled
}

// Claimants lists the Services that claim each frontend, winner first.
func (c *Cluster) Claimants() map[kernel.ServerKey][]claimant {
	all := map[kernel.ServerKey][]claimant{}
	for key, claims := range c.node.claims {
		for _, claim := range claims {
			all[key] = append(all[key], claim.claimant())
		}
	}
	return all
}

func (c *Cluster) EndpointsAt(a netip.Addr) int { return int(c.node.virtual.endpoints[shorten(a)]) }

func (c *Cluster) Fragment(id model.ServiceID) want.Fragment { return c.services[id].fragment }

// SetRoom sets the number of entries above which a set is nearly full.
func (c *Cluster) SetRoom(entries int) { c.node.bounds.room = entries }

// CompileLate puts all work that can wait into the backlog.
func (c *Cluster) CompileLate() { c.node.work = work{} }

// SmallBounds divides all bounds of a Service by a number, and returns the results.
func (c *Cluster) SmallBounds(by int) (ports, endpoints, external, destinations int) {
	b := &c.node.bounds
	for _, bound := range []*int{&b.ports, &b.endpoints, &b.external, &b.destinations} {
		*bound /= by
	}
	return b.ports, b.endpoints, b.external, b.destinations
}
