//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
)

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", freeport.Get(t))
}

// TestWaitingAgentReportsReason: without responses, the kubelet would kill the agent, and operators could not see
// what it is waiting for.
func TestWaitingAgentReportsReason(t *testing.T) {
	health, metrics, socket := freeAddress(t), freeAddress(t), filepath.Join(t.TempDir(), "run", "agent.sock")
	held := fmt.Errorf("%w (kube-ipvs run, process 42)", nodelock.ErrHeld)
	waiting, errEnded := make(chan struct{}), errors.New("ended")
	cfg := Config{Version: "test", Flags: &config.Flags{}, Log: zap.NewNop(), Machine: Machine{
		Lock: func(ctx context.Context, tell func(error)) (*nodelock.Lock, error) {
			tell(nodelock.ErrHeld)
			tell(held)
			close(waiting)
			<-ctx.Done()
			return nil, errEnded
		},
	}}
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	cfg.Flags.AddRun(flags)
	err := flags.Parse([]string{"--manifests=" + t.TempDir(), "--status-socket=" + socket, "--healthz-bind-address=" + health, "--metrics-bind-address=" + metrics})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Loaded, err = cfg.Flags.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	<-waiting
	const why = "waiting for the node lock: another kube-ipvs is running on this node (kube-ipvs run, process 42)"
	for url, want := range map[string]string{
		"http://" + health + "/readyz":   "503 not ready: " + why,
		"http://" + health + "/livez":    "200 ",
		"http://" + metrics + "/metrics": "kube_ipvs_waiting_for_node_lock 1",
	} {
		awaitText(t, want, func() string { return getText(url) })
	}
	awaitText(t, "the agent is "+why, func() string {
		_, err := status.Get(t.Context(), socket, agent.Query{})
		return fmt.Sprint(err)
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	for _, address := range []string{health, metrics} {
		if _, err := net.Dial("tcp", address); err == nil {
			t.Errorf("%s is still served", address)
		}
	}
}

func getText(url string) string {
	response, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return fmt.Sprint(response.StatusCode, " ", string(body), err)
}

func awaitText(t *testing.T, want string, get func() string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got := get()
		if strings.Contains(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s; want %s", got, want)
		}
	}
}
