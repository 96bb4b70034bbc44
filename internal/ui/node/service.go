package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// ServiceDocument is the answer to the question "service".
type ServiceDocument struct {
	view.Header
	Time      time.Time      `json:"time"`
	Service   string         `json:"service"`
	Problems  []string       `json:"problems"`
	Since     time.Time      `json:"since"`
	Error     string         `json:"error,omitempty"`
	Unknown   []string       `json:"unknown"`
	Frontends []FrontendLoad `json:"frontends"`
}

// FrontendLoad is a frontend and its traffic.
type FrontendLoad struct {
	view.Frontend
	Now  inspect.Traffic `json:"now"`
	Hour []Minute        `json:"hour"`
	// Flows contains a flow for each endpoint of the frontend, in the same order.
	Flows []Flow `json:"flows"`
}

// Flow is the traffic from a frontend to an endpoint.
type Flow struct {
	Address netip.AddrPort  `json:"address"`
	Now     inspect.Traffic `json:"now"`
	// Total is the traffic of the last hour. Share is the endpoint's share of the new connections in that hour, and WeightShare its share
	// of the weights. Both range from 0 to 1.
	Total       Minute   `json:"total"`
	Share       float64  `json:"share"`
	WeightShare float64  `json:"weightShare"`
	Hour        []Minute `json:"hour"`
}

func (n *Node) service(ctx context.Context, name string) (ServiceDocument, error) {
	v, silence, err := n.src.View(ctx, name)
	switch {
	case err != nil:
		return ServiceDocument{}, err
	case v == nil:
		return ServiceDocument{}, fmt.Errorf("cannot show a Service without the agent: %s", silence)
	}
	list, err := n.src.Services(ctx, v)
	if err != nil {
		return ServiceDocument{}, err
	}
	i := slices.IndexFunc(list.Items, func(s view.Service) bool { return s.ID() == name })
	if i < 0 {
		return ServiceDocument{}, fmt.Errorf("this node serves no Service %s", name)
	}
	s := list.Items[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	d := ServiceDocument{Header: view.HeaderOf("ServiceLoad"), Time: n.now(), Service: name, Problems: append([]string{}, s.Problems...),
		Since: n.started, Error: n.unread, Unknown: v.Missing(),
		Frontends: []FrontendLoad{}}
	for _, f := range s.Frontends {
		d.Frontends = append(d.Frontends, n.load(f))
	}
	return d, nil
}

func (n *Node) load(f view.Frontend) FrontendLoad {
	key := inspect.ServerOf(f)
	if !f.Ours() {
		key = kernel.ServerKey{} // has no traffic
	}
	load := FrontendLoad{Frontend: f, Flows: []Flow{}}
	all := n.hour.of(place{server: key})
	load.Hour = all[:]
	_, measured := n.before[key]
	if measured {
		load.Now = inspect.TrafficOf(n.before[key].Counters, n.latest[key].Counters, n.seconds)
	}
	for _, e := range f.Endpoints {
		load.Flows = append(load.Flows, n.flow(f, key, e, measured))
	}
	inspect.Share(load.Flows, func(f *Flow) *float64 { return &f.Share }, func(f Flow) float64 { return float64(f.Total.Connections) })
	inspect.Share(load.Flows, func(f *Flow) *float64 { return &f.WeightShare }, func(f Flow) float64 { return f.WeightShare })
	return load
}

func (n *Node) flow(f view.Frontend, key kernel.ServerKey, e view.Endpoint, measured bool) Flow {
	addr := e.Address
	if f.AllPorts {
		addr = netip.AddrPortFrom(addr.Addr(), 0)
	}
	all := n.hour.of(place{key, addr})
	flow := Flow{Address: e.Address, Hour: all[:], Total: sum(all)}
	if e.Weight != nil {
		flow.WeightShare = float64(*e.Weight)
	}
	if now, exists := n.latest[key].Endpoints[addr]; exists && measured {
		flow.Now = inspect.TrafficOf(n.before[key].Endpoints[addr].Stats, now.Stats, n.seconds)
	}
	return flow
}
