//go:build linux

package daemon

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// recorder is an in-memory kernel that records which goroutines write to it.
type recorder struct {
	*kerneltest.Fake
	mu      sync.Mutex
	writers []string
	// walks counts walks through connection tracking. ruleWrites counts the writes of each family's rules.
	walks      crowd
	ruleWrites map[inet.Family]*crowd
	looked     bool
}

// HasDevice fails on the first call, as if an interface of a different type had the device's name. The agent must start anyway, and its syncs must
// report the failure.
func (r *recorder) HasDevice(ctx context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.looked {
		r.looked = true
		return false, errors.New("kube-ipvs0 is a bridge")
	}
	return r.Fake.HasDevice(ctx)
}

// Apply records the goroutine that writes. A separate goroutine writes rules.
func (r *recorder) Apply(ctx context.Context, ops []kernel.Op) []error {
	if ops[0].KindOf() == kernel.KindRules {
		defer r.count(r.ruleWrites[ops[0].Object.(kernel.Ruleset).Family])()
		return r.Fake.Apply(ctx, ops)
	}
	stack := make([]byte, 64)
	id := strings.Fields(string(stack[:runtime.Stack(stack, false)]))[1] // "goroutine 7 [running]"
	r.mu.Lock()
	if !slices.Contains(r.writers, id) {
		r.writers = append(r.writers, id)
	}
	r.mu.Unlock()
	return r.Fake.Apply(ctx, ops)
}

// crowd counts the calls in progress. most is the maximum so far.
type crowd struct{ running, most int }

// count records the start of a call. The returned function records its end.
func (r *recorder) count(c *crowd) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.running++
	c.most = max(c.most, c.running)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.running--
	}
}

func (r *recorder) EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error) {
	defer r.count(&r.walks)()
	return r.Fake.EndFlows(ctx, protocols, stale)
}

func (*recorder) Watch(ctx context.Context, _, _ func()) { <-ctx.Done() }
func (*recorder) LimitWaits()                            {}
func (*recorder) PrepareMove(context.Context, map[kernel.ServerKey]struct{}) (int, error) {
	return 0, nil
}
func (*recorder) Close() error { return nil }

const goodService = `apiVersion: v1
kind: Service
metadata: {name: good}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
`

const badService = `apiVersion: v1
kind: Service
metadata: {name: bad}
spec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}
`

// running is a daemon that serves manifests on an in-memory kernel.
type running struct {
	kernel            *recorder
	socket, manifests string
}

func start(t *testing.T, manifests map[string]string) *running {
	t.Helper()
	dir := t.TempDir()
	r := &running{
		kernel: &recorder{Fake: kerneltest.New(compile.Chains...), ruleWrites: map[inet.Family]*crowd{inet.IPv4: {}, inet.IPv6: {}}},
		socket: filepath.Join(dir, "run", "agent.sock"), manifests: filepath.Join(dir, "manifests"),
	}
	if err := os.Mkdir(r.manifests, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range manifests {
		r.write(t, name, text)
	}
	cfg := Config{
		Version: "test", Flags: &config.Flags{}, Level: zap.NewAtomicLevel(), Log: zap.NewNop(),
		Machine: Machine{
			Check: func(context.Context, preflight.Needs) preflight.Result {
				return preflight.Result{Choice: preflight.Choice{Families: inet.Families}}
			},
			Open: func(*config.Settings, preflight.Choice, *zap.Logger) (Kernel, kernel.Ports, error) {
				return r.kernel, kernel.Ports{}, nil
			},
			Lock:           func(context.Context, func(error)) (*nodelock.Lock, error) { return &nodelock.Lock{}, nil },
			ProtectFromOOM: func(int, *zap.Logger) {},
		},
	}
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	cfg.Flags.AddRun(flags)
	err := flags.Parse([]string{
		"--hostname-override=node-1", "--manifests=" + r.manifests, "--status-socket=" + r.socket, "--healthz-bind-address=",
		"--metrics-bind-address=", "--metrics-service-ports=0",
	})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Loaded, err = cfg.Flags.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

func (r *running) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.manifests, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (r *running) await(t *testing.T, wanted func(*view.View) bool) *view.View {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		v, err := status.Get(t.Context(), r.socket, agent.Query{All: true})
		if err == nil && wanted(v) {
			return v
		}
		if time.Now().After(deadline) {
			t.Fatalf("the last answer was %+v, error %v", v, err)
		}
	}
}

func services(n int) func(*view.View) bool {
	return func(v *view.View) bool { return v.Agent.LastFullSync != nil && v.Totals.Services == n }
}

// TestBadServiceDoesNotAffectOthers proves I11: an invalid Service is reported as a Problem, and the valid Service is
// served.
func TestBadServiceDoesNotAffectOthers(t *testing.T) {
	r := start(t, map[string]string{"bad.yaml": badService, "good.yaml": goodService})
	v := r.await(t, services(1))
	if len(v.Problems) == 0 || !strings.Contains(v.Problems[0], "Service default/bad") {
		t.Errorf("problems %q", v.Problems)
	}
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	servers := r.kernel.State().Servers
	if _, served := servers[key]; !served || len(servers) != 1 {
		t.Errorf("got virtual servers %v", servers)
	}
}

// TestOneWriter proves I10: only one goroutine writes to the kernel, and only one goroutine at a time writes rules, even while the source changes and
// other goroutines request views.
func TestOneWriter(t *testing.T) {
	r := start(t, map[string]string{"good.yaml": goodService})
	r.await(t, services(1))
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 20 {
				if _, err := status.Get(t.Context(), r.socket, agent.Query{All: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	second := strings.NewReplacer("name: good", "name: second", "10.96.0.1", "10.96.0.2").Replace(goodService)
	r.write(t, "second.yaml", second)
	r.await(t, services(2))
	readers.Wait()
	r.kernel.mu.Lock()
	defer r.kernel.mu.Unlock()
	if len(r.kernel.writers) != 1 {
		t.Errorf("these goroutines wrote to the kernel: %v; want one", r.kernel.writers)
	}
	if v4, v6 := r.kernel.ruleWrites[inet.IPv4].most, r.kernel.ruleWrites[inet.IPv6].most; r.kernel.walks.most != 1 || v4 != 1 || v6 != 1 {
		t.Errorf("%d walks through connection tracking, and %d and %d writes of a family's rules, ran at a time; want one", r.kernel.walks.most, v4, v6)
	}
}
