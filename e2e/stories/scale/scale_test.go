package scale

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	services  = 10_000
	endpoints = 10
)

func TestCostFollowsTheChange(t *testing.T) {
	labtest.NetNS(t)
	cfg, k := open(t)
	changes := map[model.ServiceID]*model.Service{}
	for i := range services {
		svc := newService(i, endpoints)
		changes[svc.ID] = svc
	}

	source := newSource(changes)
	cold := pass(t, cfg, source, k)
	t.Attr("figure", fmt.Sprintf("cold start: %d operations in %s, %+v", len(cold.report.Results), cold.report.Duration.Round(time.Millisecond), cold.stats))
	if cold.stats.Netlink.Sends > uint64(len(cold.report.Results)/32) {
		t.Errorf("%d operations needed %d messages; the operations must be batched", len(cold.report.Results), cold.stats.Netlink.Sends)
	}

	source = newSource(changes)
	loop := start(t, cfg, source, k)
	again := loop.next(t)
	t.Attr("figure", fmt.Sprintf("restart with nothing to change: %d operations in %s, %+v",
		len(again.report.Results), again.report.Duration.Round(time.Millisecond), again.stats))
	if len(again.report.Results) != 0 {
		t.Errorf("a restart with nothing to change made %d writes, the first one %s", len(again.report.Results), again.report.Results[0].Op)
	}

	// An additional endpoint on another node must change only one destination.
	svc := newService(4711, endpoints+1)
	source.change(svc)
	one := loop.next(t)
	t.Attr("figure", fmt.Sprintf("one more endpoint: %d operations in %s, %+v", len(one.report.Results), one.report.Duration.Round(time.Microsecond), one.stats))
	if one.stats.Netlink.Requests != 1 || one.stats.Netlink.Dumps != 0 || one.stats.Processes != 0 || len(one.report.Compiled) != 1 {
		t.Errorf("adding an endpoint took %+v and compiled %d Services, want a single request", one.stats, len(one.report.Compiled))
	}
}

func open(t *testing.T) (compile.Config, *live.Kernel) {
	t.Helper()
	tables, err := iptables.Detect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg := compile.Config{
		Host:     compile.Host{NodeName: "here", Families: tables.Families, Mode: cluster.Mode()},
		Settings: compile.Settings{Scheduler: "rr", MasqueradeBit: 14},
	}
	var sysctls []string
	for _, s := range compile.Base(cfg).Sysctls {
		sysctls = append(sysctls, s.Name)
	}
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix, Chains: compile.Chains, Sysctls: sysctls,
		Variant: tables.Variant, Families: tables.Families, Mode: cluster.Mode(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return cfg, k
}

func newService(n, endpoints int) *model.Service {
	slice := &model.EndpointSlice{
		Name: fmt.Sprintf("svc-%d-a", n), Family: inet.IPv4,
		Ports: []model.EndpointPort{{Name: "http", Protocol: inet.TCP, Port: 8080}},
	}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, byte(128 + n/250), byte(n % 250), byte(i + 1)}), Ready: true, Serving: true, Node: "elsewhere",
		})
	}
	return &model.Service{
		ID:         model.ServiceID{Namespace: "default", Name: fmt.Sprintf("svc-%d", n)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(n / 250), byte(n%250 + 1)})},
		Ports:      []model.ServicePort{{Name: "http", Protocol: inet.TCP, Port: 80}},
		Slices:     []*model.EndpointSlice{slice},
	}
}

// Any goroutine may change the source.
type source struct {
	mu      sync.Mutex
	pending map[model.ServiceID]*model.Service
	changed chan struct{}
}

func newSource(services map[model.ServiceID]*model.Service) *source {
	s := &source{pending: services, changed: make(chan struct{}, 1)}
	s.notify()
	return s
}

func (s *source) notify() {
	select {
	case s.changed <- struct{}{}:
	default: // the loop has not yet received the previous notification
	}
}

func (s *source) change(svc *model.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending[svc.ID] = svc
	s.notify()
}

func (s *source) Changed() <-chan struct{} { return s.changed }
func (s *source) Synced() bool             { return true }

func (s *source) Take() model.Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := model.Changes{Services: s.pending}
	s.pending = map[model.ServiceID]*model.Service{}
	return changes
}

type measured struct {
	report agent.Report
	stats  live.Stats
}

// loop runs an agent one sync at a time.
type loop struct {
	agent  *agent.Agent
	kernel *live.Kernel
	last   measured
	stop   context.CancelFunc
}

// The agent runs on the test's own goroutine, because that goroutine is in the right network namespace.
func start(t *testing.T, cfg compile.Config, source *source, k *live.Kernel) *loop {
	t.Helper()
	l := &loop{kernel: k}
	l.agent = agent.New(agent.Config{
		Compile: cfg, AuditInterval: time.Hour, DrainInterval: time.Hour,
		Observe: func(r agent.Report) {
			l.last.report = r
			l.stop()
		},
	}, source, k, zap.NewNop())
	return l
}

// next runs the agent until a sync has written or found a difference, and returns that sync.
func (l *loop) next(t *testing.T) measured {
	t.Helper()
	before := l.kernel.Stats()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l.stop = stop
	l.agent.Run(ctx)
	after := l.kernel.Stats()
	l.last.stats = live.Stats{Processes: after.Processes - before.Processes}
	l.last.stats.Netlink.Requests = after.Netlink.Requests - before.Netlink.Requests
	l.last.stats.Netlink.Sends = after.Netlink.Sends - before.Netlink.Sends
	l.last.stats.Netlink.Dumps = after.Netlink.Dumps - before.Netlink.Dumps
	// Ending a run also cancels its walk over the connections, and the next run reports the error.
	if err := l.last.report.Err; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return l.last
}

func pass(t *testing.T, cfg compile.Config, source *source, k *live.Kernel) measured {
	t.Helper()
	return start(t, cfg, source, k).next(t)
}
