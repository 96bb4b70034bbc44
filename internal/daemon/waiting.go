//go:build linux

package daemon

import (
	"context"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// awaitLock waits for the node lock and acquires it. While another process holds the lock, the log, the health and metrics servers and
// the status socket report the wait, except on addresses that the other process uses.
func awaitLock(ctx context.Context, cfg Config) (*nodelock.Lock, error) {
	w := &waitingRoom{cfg: cfg}
	defer w.close()
	lock, err := cfg.Machine.Lock(ctx, func(held error) { w.waitFor(ctx, held) })
	if err == nil && lock.Ignored != nil {
		cfg.Log.Warn("another process could be a second agent", zap.Error(lock.Ignored))
	}
	return lock, err
}

// waitingRoom runs the servers while the agent waits. The servers start when the agent first has to wait.
type waitingRoom struct {
	cfg       Config
	telemetry *telemetry.Waiting
	stop      context.CancelFunc
	running   sync.WaitGroup

	mu     sync.Mutex
	reason error
}

func (w *waitingRoom) waitFor(ctx context.Context, held error) {
	w.cfg.Log.Warn("waiting for the node lock", zap.Error(held))
	w.mu.Lock()
	w.reason = fmt.Errorf("%w: %w", status.ErrWaiting, held)
	w.mu.Unlock()
	if w.telemetry == nil {
		w.open(ctx)
	}
	w.telemetry.For(w.reason)
}

func (w *waitingRoom) open(ctx context.Context) {
	settings := &w.cfg.Loaded.Settings
	w.telemetry = telemetry.NewWaiting(telemetry.Config{
		Version: w.cfg.Version, Commit: w.cfg.Commit, Period: agentSettings(settings).Period(),
		HealthAddress: settings.HealthAddress, MetricsAddress: settings.MetricsAddress, Log: w.cfg.Log,
	})
	ctx, w.stop = context.WithCancel(ctx)
	w.running.Go(func() { w.telemetry.Run(ctx) })
	if settings.StatusSocket == "" {
		return
	}
	// Failures are not logged, because the process that holds the lock usually listens on the same socket.
	server := status.NewServer(status.Config{Path: settings.StatusSocket, View: w.view, Log: zap.NewNop()})
	w.running.Go(func() { server.Run(ctx) })
}

func (w *waitingRoom) view(context.Context, agent.Query) (*view.View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return nil, w.reason
}

// close frees the addresses for the agent itself.
func (w *waitingRoom) close() {
	if w.stop != nil {
		w.stop()
	}
	w.running.Wait()
}
