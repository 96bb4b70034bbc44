package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type secretive struct {
	agent.Kernel
	sockets, routes atomic.Bool
}

func (k *secretive) Listeners(ctx context.Context) (kernel.Listeners, error) {
	if k.sockets.Load() {
		return nil, syscall.EACCES
	}
	return k.Kernel.Listeners(ctx)
}

func (k *secretive) Network(ctx context.Context) (kernel.Network, error) {
	if k.routes.Load() {
		return nil, syscall.EACCES
	}
	return k.Kernel.Network(ctx)
}

func TestSocketsCannotBeListed(t *testing.T) {
	calmBubble(t, func(w *world) {
		secret := &secretive{Kernel: w.fake}
		secret.sockets.Store(true)
		w.kernel = secret
		greedy := compiletest.Service("greedy", "10.96.0.7", "10.244.2.7")
		greedy.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		w.put(web("10.244.0.1"), greedy)
		w.start()
		w.sleep(5 * time.Minute)
		if !w.has("ipvsadm -A -t 10.96.0.1:80") || !w.has("ipvsadm -A -t 10.96.0.7:80") || w.has("192.0.2.1:80") {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
		if err := w.lastReport().Err; !errors.Is(err, syscall.EACCES) {
			w.Errorf("report: %v", err)
		}
		secret.sockets.Store(false)
		w.sleep(5 * time.Minute)
		if err := w.lastReport().Err; err != nil || !w.has("192.0.2.1:80") {
			w.Errorf("then: %v\n%s", err, w.fake.Dump())
		}
	})
}

// A known limit: if the node's routes cannot be listed when the agent starts, the agent serves nothing and reports
// the failure.
func TestRoutesCannotBeListed(t *testing.T) {
	calmBubble(t, func(w *world) {
		secret := &secretive{Kernel: w.fake}
		secret.routes.Store(true)
		w.kernel = secret
		w.put(web("10.244.0.1"))
		w.start()
		w.sleep(5 * time.Minute)
		if err := w.lastReport().Err; !errors.Is(err, syscall.EACCES) || w.has("10.96.0.1:80") {
			w.Errorf("report: %v\n%s", err, w.fake.Dump())
		}
		secret.routes.Store(false)
		w.sleep(5 * time.Minute)
		w.is()
	})
}
