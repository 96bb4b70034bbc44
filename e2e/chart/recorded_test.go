package chart

import (
	"context"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

type inMemory struct{ *kerneltest.Fake }

func (inMemory) Watch(ctx context.Context, _, _ func()) { <-ctx.Done() }
func (inMemory) LimitWaits()                            {}
func (inMemory) PrepareMove(context.Context, map[kernel.ServerKey]struct{}) (int, error) {
	return 0, nil
}
func (inMemory) Close() error { return nil }

// recorded returns the series of an agent that has synced with a fake kernel. Series that need an API server or a
// kernel module come from the golden file of internal/telemetry, which contains every series.
func recorded(t *testing.T) map[string]float64 {
	t.Helper()
	every, err := os.ReadFile(filepath.Join(root, "internal/telemetry/testdata/metrics.golden"))
	if err != nil {
		t.Fatal(err)
	}
	all := samples(t, string(every))
	address := "127.0.0.1:" + strconv.Itoa(int(freeport.Get(t)))
	runAgent(t, "--metrics-bind-address="+address)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		running := scrape(t, "http://"+address+"/metrics")
		if running["kube_ipvs_last_full_sync_timestamp_seconds"] > 0 && running["kube_ipvs_services"] == 1 {
			maps.Copy(all, running)
			return all
		}
		if time.Now().After(deadline) {
			t.Fatal("the agent has not synced within a minute")
		}
	}
}

const recordedService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
`

// runAgent runs an agent with one Service until the test ends.
func runAgent(t *testing.T, args ...string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "service.yaml"), []byte(recordedService), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := daemon.Config{
		Version: "test", Flags: &config.Flags{}, Level: zap.NewAtomicLevel(), Log: zap.NewNop(),
		Machine: daemon.Machine{
			Check: func(context.Context, preflight.Needs) preflight.Result {
				return preflight.Result{Choice: preflight.Choice{Families: inet.Families}}
			},
			Open: func(*config.Settings, preflight.Choice, *zap.Logger) (daemon.Kernel, kernel.Ports, error) {
				return inMemory{kerneltest.New(compile.Chains...)}, kernel.Ports{}, nil
			},
			Lock:           func(context.Context, func(error)) (*nodelock.Lock, error) { return &nodelock.Lock{}, nil },
			ProtectFromOOM: func(int, *zap.Logger) {},
		},
	}
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	cfg.Flags.AddRun(flags)
	args = append(args, "--hostname-override=node-1", "--manifests="+dir, "--status-socket=", "--healthz-bind-address=", "--metrics-service-ports=0")
	err := flags.Parse(args)
	if err == nil {
		cfg.Loaded, err = cfg.Flags.Load()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx, cfg) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the agent: %v", err)
		}
	})
}

// scrape returns nil until the agent listens.
func scrape(t *testing.T, url string) map[string]float64 {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return samples(t, string(text))
}

func samples(t *testing.T, text string) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		cut := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[cut+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all[line[:cut]] = value
	}
	return all
}
