package healthport

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Port is the health check port of one Service.
type Port struct {
	Number uint16
	// Local is the number of distinct addresses of the Service's ready endpoints on this node.
	Local int
}

// Config configures Ports. All functions are required, must be safe for concurrent use, and must not block.
type Config struct {
	Families  []inet.Family
	Healthy   func() bool
	Responded func(status int)
	// Failed is called when listening for a Service fails on an address, and again when the reason changes. The
	// error is nil once all listeners work.
	Failed func(id model.ServiceID, err error)
	// Counted is called with the number of Services whose listeners all work, and the number of Services that lack a listener.
	Counted func(listening, failing int)
	Log     *zap.Logger
}

// Failed listeners are retried with exponential backoff between retryMin and retryMax.
const retryMin, retryMax = time.Second, 30 * time.Second

// Ports serves the health check ports of this node.
type Ports struct {
	cfg   Config
	limit *ConnLimit
	wake  chan struct{}
	// retry is the initial backoff, and listen opens a socket. Only tests change them.
	retry  time.Duration
	listen func(ctx context.Context, network, address string) (net.Listener, error)

	mu        sync.Mutex
	wanted    map[model.ServiceID]Port
	addresses []netip.Addr

	// Open listeners, failed listeners, and reported failures. Only Run uses them.
	open     map[binding]*listener
	failed   map[binding]*failure
	reported map[model.ServiceID]string
}

// New returns Ports that do not listen until Run is called.
func New(cfg Config) *Ports {
	p := &Ports{
		cfg: cfg, limit: NewConnLimit(MaxConnections), wake: make(chan struct{}, 1), retry: retryMin, listen: new(net.ListenConfig).Listen,
		wanted: map[model.ServiceID]Port{}, open: map[binding]*listener{}, failed: map[binding]*failure{}, reported: map[model.ServiceID]string{},
	}
	p.SetAddresses(nil)
	return p
}

// SetAddresses sets the addresses to listen on. For a family without addresses, Ports listens on the unspecified
// address. This is the case before the first call and if the node's addresses cannot be read: a node that does not
// respond would receive no traffic.
func (p *Ports) SetAddresses(addresses []netip.Addr) {
	var all []netip.Addr
	for _, family := range p.cfg.Families {
		n := len(all)
		for _, a := range addresses {
			if inet.FamilyOf(a) == family {
				all = append(all, a)
			}
		}
		if len(all) == n {
			all = append(all, unspecified(family))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	p.mu.Lock()
	changed := !slices.Equal(p.addresses, all)
	p.addresses = all
	p.mu.Unlock()
	if changed {
		p.settleSoon()
	}
}

func unspecified(f inet.Family) netip.Addr {
	if f == inet.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Update changes the ports of the Services in the map and keeps all others. One call can move a port from one Service
// to another.
func (p *Ports) Update(ports map[model.ServiceID]Port) {
	changed := false
	p.mu.Lock()
	for id, port := range ports {
		changed = changed || p.wanted[id].Number != port.Number
		if port.Number == 0 {
			delete(p.wanted, id)
			continue
		}
		p.wanted[id] = port
	}
	p.mu.Unlock()
	if changed {
		p.settleSoon()
	}
}

func (p *Ports) settleSoon() {
	select {
	case p.wake <- struct{}{}:
	default: // already awake
	}
}

func (p *Ports) local(id model.ServiceID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted[id].Local
}

// Run keeps the ports open until the context ends, then closes them.
func (p *Ports) Run(ctx context.Context) {
	defer p.closeAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
		if next := p.settle(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}
