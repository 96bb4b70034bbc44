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

// Port is what one Service wants.
type Port struct {
	// Number of the port; 0 for a Service that wants none.
	Number uint16
	// Local counts the distinct addresses of its ready endpoints on this node.
	Local int
}

// Config of Ports. Every function is needed; each may be called by several goroutines at once, and must not block.
type Config struct {
	// Families that this node serves.
	Families []inet.Family
	// Healthy says whether this node's Services are kept as the cluster wants them.
	Healthy func() bool
	// Answered is told the HTTP status of each answer.
	Answered func(status int)
	// Failed is told why the health checks of a Service are not answered everywhere, when that changes; an empty text says
	// that they are, or that nobody wants them any more.
	Failed func(id model.ServiceID, why string)
	// Counted is told how many Services have all their listeners, and how many lack one.
	Counted func(listening, failing int)
	Log     *zap.Logger
}

// A port that cannot be listened on is tried again after retryMin, then after twice as long each time, up to retryMax.
const retryMin, retryMax = time.Second, 30 * time.Second

// Ports are the health check ports of this node.
type Ports struct {
	cfg   Config
	crowd *crowd
	wake  chan struct{}
	// retry is the first wait after a failure, and listen how a socket is opened. Only tests change them.
	retry  time.Duration
	listen func(ctx context.Context, network, address string) (net.Listener, error)

	mu        sync.Mutex
	wanted    map[model.ServiceID]Port
	addresses []netip.Addr

	// What stands and what does not. Only Run uses them.
	open   map[place]*listener
	failed map[place]*failure
	told   map[model.ServiceID]string
}

// New returns Ports that listen to nothing before Run.
func New(cfg Config) *Ports {
	p := &Ports{
		cfg: cfg, crowd: newCrowd(maxConnections), wake: make(chan struct{}, 1), retry: retryMin, listen: new(net.ListenConfig).Listen,
		wanted: map[model.ServiceID]Port{}, open: map[place]*listener{}, failed: map[place]*failure{}, told: map[model.ServiceID]string{},
	}
	p.SetAddresses(nil)
	return p
}

// SetAddresses says at which addresses to listen. A family of which there is none is listened to at all its addresses: so it is
// before the first call, and so it is where the node's addresses cannot be read, because a node that does not answer gets no
// traffic.
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

// Update notes what Services want now; those that are not named want what they wanted before. A port may pass from one Service
// to another in one call.
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

// settleSoon makes Run look.
func (p *Ports) settleSoon() {
	select {
	case p.wake <- struct{}{}:
	default: // told already
	}
}

func (p *Ports) local(id model.ServiceID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted[id].Local
}

// Run keeps the ports open until the context ends, and closes them then.
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
