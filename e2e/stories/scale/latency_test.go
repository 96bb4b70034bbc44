package scale

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

const (
	besideFlapping = 1_000 // ordinary Services
	flapRate       = 1_000 // changes of one slice per second, if the machine is fast enough
	minFlapRate    = 100
	// maxFlapsAhead limits the changes that the agent has not received yet. On a machine that is too slow for flapRate,
	// the queue would grow, and the test would measure the queue.
	maxFlapsAhead  = 50
	measuredWrites = 100
	// auditedServices is the number of Services that fit, with the API server and the agent, into one process of
	// user-mode Linux (docs/lab.md).
	auditedServices = 5_000
)

// A slice that changes up to 1,000 times a second must not affect other Services.
func TestFlappingSlice(t *testing.T) {
	m := &meter{server: watchtest.New(t), reports: make(chan agent.Report, 16)}
	for i := range besideFlapping {
		m.server.Put(apiService(i), apiSlice(i, "192.0.2.1"))
	}
	m.run(t, time.Hour, m.flapping)

	t.Attr("figure", fmt.Sprintf("without flapping: %s", m.calm))
	t.Attr("figure", fmt.Sprintf("with %.0f changes a second (%d, written by %d syncs): %s", m.rate, m.flaps, m.flapSyncs, m.beside))
	if m.rate < minFlapRate {
		t.Errorf("the slice changed %.0f times a second, want at least %d", m.rate, minFlapRate)
	}
	// Compare medians, because the API server uses the same CPU for the 1,000 changes, possibly for several time
	// slices.
	for what, took := range map[string][2][]time.Duration{
		"an endpoint change": {m.calm.waited, m.beside.waited}, "the sync of an endpoint change": {m.calm.synced, m.beside.synced},
	} {
		if limit, now := percentile(took[0], 50)*3/2+2*time.Millisecond, percentile(took[1], 50); now > limit {
			t.Errorf("with a flapping slice, %s takes %s (p50), want at most %s", what, now, limit)
		}
	}
	if m.full != 1 {
		t.Errorf("the agent read the whole kernel %d times, want only the initial read", m.full)
	}
}

// TestChangesDuringAudits changes an endpoint while audits continuously read a kernel with 5,000 Services.
func TestChangesDuringAudits(t *testing.T) {
	m := &meter{server: watchtest.New(t), reports: make(chan agent.Report, 16)}
	for i := range auditedServices {
		addrs := []string{"192.0.2.1"}
		for n := range endpoints - 1 {
			addrs = append(addrs, fmt.Sprintf("10.%d.%d.%d", 128+i/250, i%250, n+1))
		}
		m.server.Put(apiService(i), apiSlice(i, addrs...))
	}
	m.run(t, 100*time.Millisecond, func(ctx context.Context) (err error) {
		m.beside, err = m.writes(ctx, 3*measuredWrites)
		return err
	})
	t.Attr("figure", fmt.Sprintf("%d audits: %s", m.full-1, m.beside))
	if m.full < 3 {
		t.Errorf("only %d audits ran", m.full-1)
	}
	// An audit that blocked the loop would delay an endpoint change by almost a second.
	if p99 := percentile(m.beside.waited, 99); p99 > 250*time.Millisecond {
		t.Errorf("an endpoint change takes %s (p99) while audits run", p99)
	}
}

type meter struct {
	server       *watchtest.Server
	received     func() watch.Counts
	reports      chan agent.Report
	calm, beside latency
	// flapSyncs counts the syncs that wrote a change to the flapping slice.
	flaps, flapSyncs, full int
	rate                   float64
}

// latency contains the duration of each change, from the API server to the kernel, and the duration of its sync.
type latency struct{ waited, synced []time.Duration }

func (l latency) String() string {
	return fmt.Sprintf("an endpoint change takes %s (p50), %s (p99), its sync %s, %s",
		percentile(l.waited, 50), percentile(l.waited, 99), percentile(l.synced, 50), percentile(l.synced, 99))
}

func (m *meter) observe(ctx context.Context) func(agent.Report) {
	return func(r agent.Report) {
		select {
		case m.reports <- r:
		case <-ctx.Done():
		}
	}
}

func (m *meter) run(t *testing.T, auditInterval time.Duration, measure func(context.Context) error) {
	t.Helper()
	at := watchtest.Config(m.server.Start()) // before this goroutine leaves the other goroutines' namespace
	labtest.NetNS(t)
	cfg, k := open(t)
	api, err := watch.NewAPI(at, watch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.received = api.Counts
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	go func() { _ = api.Run(ctx) }()
	a := agent.New(agent.Config{Compile: cfg, AuditInterval: auditInterval, DrainInterval: time.Hour, Observe: m.observe(ctx)}, api, k, zap.NewNop())
	measured := make(chan error, 1)
	go func() {
		defer stop()
		_, err := m.await(ctx, "192.0.2.1")
		if err == nil {
			err = measure(ctx)
		}
		measured <- err
	}()
	a.Run(ctx) // on this goroutine, which is in the network namespace
	if err := <-measured; err != nil {
		t.Fatalf("%v; the API server: %v", err, api.LastError())
	}
}

func (m *meter) flapping(ctx context.Context) (err error) {
	if m.calm, err = m.writes(ctx, measuredWrites); err != nil {
		return err
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.flap(stop)
	}()
	m.beside, err = m.writes(ctx, measuredWrites)
	close(stop)
	<-done
	return err
}

// flap catches up after delayed ticks.
func (m *meter) flap(stop <-chan struct{}) {
	began, before := time.Now(), m.received().Endpoints
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case <-stop:
			tick.Stop()
			m.rate = float64(m.flaps) / time.Since(began).Seconds()
			return
		case <-tick.C:
		}
		for ; float64(m.flaps) < time.Since(began).Seconds()*flapRate && m.flaps-(m.received().Endpoints-before) < maxFlapsAhead; m.flaps++ {
			m.server.Put(apiSlice(0, "192.0.2.1", fmt.Sprintf("198.51.100.%d", 1+m.flaps%2)))
		}
	}
}

func (m *meter) writes(ctx context.Context, n int) (took latency, err error) {
	for i := range n {
		endpoints := []string{"192.0.2.1", "203.0.113.7"}[:1+(i+1)%2]
		began := time.Now()
		m.server.Put(apiSlice(1, endpoints...))
		r, err := m.await(ctx, "203.0.113.7")
		if err != nil {
			return took, fmt.Errorf("change %d: %w", i, err)
		}
		took.waited, took.synced = append(took.waited, r.Started.Add(r.Duration).Sub(began)), append(took.synced, r.Duration)
		time.Sleep(20 * time.Millisecond) // keeps the changes out of step with the flapping
	}
	return took, nil
}

func (m *meter) await(ctx context.Context, addr string) (agent.Report, error) {
	for {
		select {
		case <-ctx.Done():
			return agent.Report{}, fmt.Errorf("no write for %s: %w", addr, ctx.Err())
		case r := <-m.reports:
			if r.Err != nil {
				return r, r.Err
			}
			if r.Full {
				m.full++
			}
			if wrote(r, "198.51.100.") {
				m.flapSyncs++
			}
			if wrote(r, addr) {
				return r, nil
			}
		}
	}
}

func wrote(r agent.Report, text string) bool {
	return slices.ContainsFunc(r.Results, func(result agent.Result) bool { return strings.Contains(result.Op.String(), text) })
}

// percentile returns the duration that the given percentage of durations does not exceed.
func percentile(all []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)*percent+99)/100-1]
}

func apiService(n int) *corev1.Service {
	addr := fmt.Sprintf("10.96.%d.%d", n/250, n%250+1)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("svc-%d", n)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: addr, ClusterIPs: []string{addr},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func apiSlice(n int, endpoints ...string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("svc-%d-a", n), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("svc-%d", n)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(8080))}},
	}
	for _, addr := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: ptr.To("elsewhere")})
	}
	return slice
}
