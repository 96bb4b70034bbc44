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

// Traffic configures the metrics of connections, packets and bytes.
type Traffic struct {
	// Read returns the counters of each virtual server in the kernel and, if endpoints is set, of its endpoints. It is called on
	// each scrape, by one goroutine at a time. If Read is nil, there are no traffic metrics.
	Read func(ctx context.Context, endpoints bool) (map[kernel.ServerKey]Counted, error)
	// ServicePorts and Endpoints are the maximum numbers of ports and endpoints with series; 0 means none.
	ServicePorts, Endpoints int
}

// Counted contains the counters of a virtual server since it was created.
type Counted struct {
	Counters
	Endpoints map[netip.AddrPort]CountedEndpoint
}

// CountedEndpoint contains an endpoint's open connections, and its counters since it became a destination of a virtual server.
type CountedEndpoint struct {
	Counters
	Active uint64
}

// Counters are the counters of a virtual server or of an endpoint. PacketsIn and BytesIn count traffic from clients.
type Counters struct{ Connections, PacketsIn, PacketsOut, BytesIn, BytesOut uint64 }

// If a counter has decreased, the virtual server was recreated and its counters restarted at 0.
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

// portID is a port of a Service. Its counters are the sum of all its virtual servers (ClusterIP, load balancer addresses, node
// ports).
type portID struct {
	service        model.ServiceID
	port, protocol string
}

func (p portID) compare(o portID) int {
	return cmp.Or(p.service.Compare(o.service), cmp.Compare(p.port, o.port), cmp.Compare(p.protocol, o.protocol))
}

type endpointID struct {
	port portID
	addr netip.AddrPort
}

func (e endpointID) compare(o endpointID) int {
	return cmp.Or(e.port.compare(o.port), e.addr.Compare(o.addr))
}

type tally struct {
	Counters
	active uint64
	// exported is true once the port or endpoint has series. It then keeps them.
	exported bool
	// labels are the labels of its series; nil until the first scrape. The labels of an endpoint include its pod.
	labels *labels
	pod    string
}

const trafficTimeout = 10 * time.Second

// traffic sums up the kernel's counters: on each scrape, it adds their increase since the previous scrape. Its series are per
// Service port, not per virtual server: virtual servers come and go, and a decreasing sum would look like a restart.
type traffic struct {
	cfg    Traffic
	log    *zap.Logger
	failed prometheus.Counter

	// reading is full while a read is running.
	reading chan struct{}
	// scraping is held for a whole scrape. mu is never held while reading the kernel, so that the loop never waits for the kernel.
	scraping sync.Mutex
	mu       sync.Mutex
	owners   map[kernel.ServerKey]portID
	// servers lists the virtual servers of each Service; serverCount is the number of virtual servers of each port.
	servers     map[model.ServiceID][]kernel.ServerKey
	serverCount map[portID]int
	pods        map[model.ServiceID]map[netip.Addr]string
	foreign     map[kernel.ServerKey]model.ServicePortRef
	last        map[kernel.ServerKey]Counted
	ports       tallies[portID]
	endpoints   tallies[endpointID]
}

func newTraffic(cfg Traffic, log *zap.Logger) *traffic {
	return &traffic{
		cfg: cfg, log: log,
		failed:      counter("kube_ipvs_traffic_read_failures_total", "Scrapes since the agent started that could not read the traffic counters and served previous totals."),
		reading:     make(chan struct{}, 1),
		owners:      map[kernel.ServerKey]portID{},
		servers:     map[model.ServiceID][]kernel.ServerKey{},
		pods:        map[model.ServiceID]map[netip.Addr]string{},
		serverCount: map[portID]int{},
		last:        map[kernel.ServerKey]Counted{},
		ports:       tallies[portID]{all: map[portID]*tally{}, compare: portID.compare},
		endpoints:   tallies[endpointID]{all: map[endpointID]*tally{}, compare: endpointID.compare},
	}
}

// observe records which virtual server belongs to which port. A Report contains only the compiled Services.
func (t *traffic) observe(r *agent.Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.foreign = r.Foreign
	affected := map[portID]struct{}{}
	for id := range r.Served {
		for _, key := range t.servers[id] {
			if port := t.owners[key]; port.service == id {
				delete(t.owners, key)
				t.serverCount[port]--
				affected[port] = struct{}{}
			}
		}
		delete(t.servers, id)
		delete(t.pods, id)
	}
	for id, served := range r.Served {
		for _, f := range served.Frontends {
			port := portID{id, f.Port, f.Key.Protocol.String()}
			affected[t.owners[f.Key]], affected[port] = struct{}{}, struct{}{}
			t.own(f.Key, port)
			t.servers[id] = append(t.servers[id], f.Key)
		}
		if served.Service != nil && t.cfg.Endpoints > 0 {
			t.pods[id] = podsOf(served.Service)
		}
	}
	t.forget(affected)
}

// own records the Service port that a virtual server serves. It replaces any earlier port.
func (t *traffic) own(key kernel.ServerKey, port portID) {
	if before, owned := t.owners[key]; owned {
		t.serverCount[before]--
	}
	t.owners[key] = port
	t.serverCount[port]++
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

// forget removes the series of ports that are no longer served, and adds series for new ports.
func (t *traffic) forget(affected map[portID]struct{}) {
	for id := range affected {
		switch {
		case t.serverCount[id] == 0:
			delete(t.serverCount, id)
			delete(t.ports.all, id)
		case t.ports.all[id] == nil:
			t.ports.all[id] = &tally{}
		}
	}
}

func (t *traffic) count(now map[kernel.ServerKey]Counted) {
	t.addMissing(now)
	present := map[endpointID]bool{}
	for _, total := range t.endpoints.all {
		total.active = 0
	}
	for key, counted := range now {
		id, owned := t.owners[key]
		if _, foreign := t.foreign[key]; !owned || foreign {
			delete(now, key)
			continue
		}
		t.ports.all[id].add(counted.since(t.last[key].Counters))
		for addr, e := range counted.Endpoints {
			at := endpointID{id, addr}
			if present[at] = true; t.endpoints.all[at] == nil {
				t.endpoints.all[at] = &tally{}
			}
			t.endpoints.all[at].add(e.since(t.last[key].Endpoints[addr].Counters))
			t.endpoints.all[at].active += e.Active
		}
	}
	for at := range t.endpoints.all {
		if !present[at] {
			delete(t.endpoints.all, at)
		}
	}
	t.last = now
}

// addMissing adds the previous counters of the virtual servers that the reading lacks. If a virtual server is deleted while the kernel lists
// them, the list can lack others. Without their previous counters, the next reading would count all their traffic again.
func (t *traffic) addMissing(now map[kernel.ServerKey]Counted) {
	for key, before := range t.last {
		if _, exists := now[key]; exists {
			continue
		}
		if _, owned := t.owners[key]; owned {
			now[key] = before
		}
	}
}
