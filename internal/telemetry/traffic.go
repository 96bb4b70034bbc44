package telemetry

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Traffic says what is told of connections, packets and bytes.
type Traffic struct {
	// Read counts for each virtual server of the kernel, and for its endpoints if they are asked for. It is called at each scrape,
	// by one goroutine at a time. Without it nothing is told.
	Read func(ctx context.Context, endpoints bool) (map[kernel.ServerKey]Counted, error)
	// ServicePorts and Endpoints bound how many are told of; 0 is none.
	ServicePorts, Endpoints int
}

// Counted is what went through a virtual server since it was made.
type Counted struct {
	Counters
	Endpoints map[netip.AddrPort]CountedEndpoint
}

// CountedEndpoint is what went to an endpoint since it is a destination of a virtual server, and how many connections are open.
type CountedEndpoint struct {
	Counters
	Active uint64
}

// Counters of a virtual server or of an endpoint; in is what clients send.
type Counters struct{ Connections, PacketsIn, PacketsOut, BytesIn, BytesOut uint64 }

// since is what was added after before. Counters that went back began anew: the virtual server was made again.
func (c Counters) since(before Counters) Counters {
	if c.Connections < before.Connections || c.PacketsIn < before.PacketsIn || c.PacketsOut < before.PacketsOut ||
		c.BytesIn < before.BytesIn || c.BytesOut < before.BytesOut {
		return c
	}
	return Counters{
		c.Connections - before.Connections, c.PacketsIn - before.PacketsIn, c.PacketsOut - before.PacketsOut,
		c.BytesIn - before.BytesIn, c.BytesOut - before.BytesOut,
	}
}

func (c *Counters) add(d Counters) {
	c.Connections += d.Connections
	c.PacketsIn += d.PacketsIn
	c.PacketsOut += d.PacketsOut
	c.BytesIn += d.BytesIn
	c.BytesOut += d.BytesOut
}

// portID is a port of a Service. All its virtual servers (ClusterIP, load balancer addresses, node ports) count for it.
type portID struct {
	service        model.ServiceID
	port, protocol string
}

func (p portID) compare(o portID) int {
	return cmp.Or(p.service.Compare(o.service), cmp.Compare(p.port, o.port), cmp.Compare(p.protocol, o.protocol))
}

func (p portID) labels() []string {
	return []string{p.service.Namespace, p.service.Name, p.port, p.protocol}
}

type endpointID struct {
	port portID
	addr netip.AddrPort
}

// tally sums up the counters of one thing.
type tally struct {
	Counters
	active uint64
	// shown stays: who has a series keeps it.
	shown bool
}

// trafficTimeout bounds how long a scrape waits for the kernel.
const trafficTimeout = 10 * time.Second

// traffic adds up at each scrape what the kernel has counted since the one before. Its series belong to Services, not to virtual
// servers: these come and go, and a sum that shrank would look like a restart.
type traffic struct {
	cfg    Traffic
	log    *zap.Logger
	failed prometheus.Counter

	// scraping is held by one scrape at a time, mu while nobody waits for the kernel: the loop must not.
	scraping sync.Mutex
	mu       sync.Mutex
	owners   map[kernel.ServerKey]portID
	fronts   map[model.ServiceID][]kernel.ServerKey
	pods     map[model.ServiceID]map[netip.Addr]string
	foreign  map[kernel.ServerKey]model.ServicePortRef
	// places counts the virtual servers of each port.
	places map[portID]int
	// last are the kernel's counters at the scrape before.
	last      map[kernel.ServerKey]Counted
	ports     map[portID]*tally
	endpoints map[endpointID]*tally
}

func newTraffic(cfg Traffic, log *zap.Logger) *traffic {
	return &traffic{
		cfg: cfg, log: log,
		failed:    counter("kube_ipvs_traffic_read_failures_total", "Scrapes that could not read the kernel's counters; they told the values from before."),
		owners:    map[kernel.ServerKey]portID{},
		fronts:    map[model.ServiceID][]kernel.ServerKey{},
		pods:      map[model.ServiceID]map[netip.Addr]string{},
		places:    map[portID]int{},
		last:      map[kernel.ServerKey]Counted{},
		ports:     map[portID]*tally{},
		endpoints: map[endpointID]*tally{},
	}
}

// observe notes which virtual server is whose. A Report has only the Services that were looked at.
func (t *traffic) observe(r *agent.Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.foreign = r.Foreign
	concerned := map[portID]struct{}{}
	for id := range r.Served {
		for _, key := range t.fronts[id] {
			if port := t.owners[key]; port.service == id {
				delete(t.owners, key)
				t.places[port]--
				concerned[port] = struct{}{}
			}
		}
		delete(t.fronts, id)
		delete(t.pods, id)
	}
	for id, served := range r.Served {
		for _, f := range served.Fronts {
			port := portID{id, f.Port, f.Key.Protocol.String()}
			concerned[t.owners[f.Key]], concerned[port] = struct{}{}, struct{}{}
			t.own(f.Key, port)
			t.fronts[id] = append(t.fronts[id], f.Key)
		}
		if served.Service != nil && t.cfg.Endpoints > 0 {
			t.pods[id] = podsOf(served.Service)
		}
	}
	t.forget(concerned)
}

// own notes whose a virtual server is, which may have been another's a moment ago.
func (t *traffic) own(key kernel.ServerKey, port portID) {
	if before, owned := t.owners[key]; owned {
		t.places[before]--
	}
	t.owners[key] = port
	t.places[port]++
}

func podsOf(s *model.Service) map[netip.Addr]string {
	pods := map[netip.Addr]string{}
	for _, slice := range s.Slices {
		for _, e := range slice.Endpoints {
			pods[e.Addr] = e.Pod
		}
	}
	return pods
}

// forget ends the series of those ports that are served no more, and begins those of the new ones.
func (t *traffic) forget(concerned map[portID]struct{}) {
	for id := range concerned {
		switch {
		case t.places[id] == 0:
			delete(t.places, id)
			delete(t.ports, id)
		case t.ports[id] == nil:
			t.ports[id] = &tally{}
		}
	}
}

// count adds what the kernel has counted since the last time.
func (t *traffic) count(now map[kernel.ServerKey]Counted) {
	there := map[endpointID]bool{}
	for _, total := range t.endpoints {
		total.active = 0
	}
	for key, counted := range now {
		id, owned := t.owners[key]
		if _, foreign := t.foreign[key]; !owned || foreign {
			delete(now, key)
			continue
		}
		t.ports[id].add(counted.since(t.last[key].Counters))
		for addr, e := range counted.Endpoints {
			at := endpointID{id, addr}
			if there[at] = true; t.endpoints[at] == nil {
				t.endpoints[at] = &tally{}
			}
			t.endpoints[at].add(e.since(t.last[key].Endpoints[addr].Counters))
			t.endpoints[at].active += e.Active
		}
	}
	for at := range t.endpoints {
		if !there[at] {
			delete(t.endpoints, at)
		}
	}
	t.last = now
}
