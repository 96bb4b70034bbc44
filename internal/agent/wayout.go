package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const wayOutInterval = 5 * time.Second

// wayOut releases addresses on kube-ipvs0 that the agent needs to reach the API server. While no agent was running,
// the API server may have moved to a Service's address on kube-ipvs0, or a new nameserver of the node may use such an
// address. The agent could then never reach the API server, and would never learn that the Service must give up the
// address. Therefore wayOut writes to the kernel before the first sync (I4).
type wayOut struct {
	cfg    *Config
	kernel Kernel
	log    *zap.Logger
	due    time.Time
	free   []netip.Addr
}

func (w *wayOut) clear(ctx context.Context) time.Time {
	if w.cfg.Contacts == nil {
		return time.Time{}
	}
	if now := time.Now(); !now.Before(w.due) {
		w.due = now.Add(wayOutInterval)
		if err := w.release(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("releasing addresses that lead to the API server failed; retrying", zap.Error(err))
		}
	}
	return w.due
}

func (w *wayOut) release(ctx context.Context) error {
	needed, err := w.wayToAPIServer(ctx)
	if err != nil || slices.Equal(needed, w.free) {
		return err
	}
	have, err := w.kernel.Read(ctx)
	if err != nil {
		return fmt.Errorf("read the kernel's state: %w", err)
	}
	steps := aloneSteps(w.cfg.Compile, w.kernel, have)
	plan := diff.Plan{Phases: []diff.Phase{{Ops: diff.WayOut(steps.planner.target, have, needed)}}}
	err = steps.apply(ctx, plan, func(op kernel.Op, err error) {
		if err == nil {
			w.log.Warn("the API server is unavailable; released an address that leads to it, so no Service is served there", zap.Stringer("released", op))
		}
	})
	if err == nil {
		w.free = needed
	}
	return err
}

// wayToAPIServer returns the addresses of the API server. If its name cannot be resolved, the function returns the
// addresses of the node's nameservers.
func (w *wayOut) wayToAPIServer(ctx context.Context) (addrs []netip.Addr, err error) {
	for _, contact := range w.cfg.Contacts() {
		addrs = append(addrs, contact.Addr())
	}
	if len(addrs) == 0 {
		network, err := w.kernel.Network(ctx)
		if err != nil {
			return nil, fmt.Errorf("find this node's nameservers: %w", err)
		}
		for addr, role := range network {
			if role.Kind == kernel.Nameserver {
				addrs = append(addrs, addr)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}
