package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// wayOutInterval is how long the source may take before the agent looks whether its own addresses are in the way, and how often it looks.
const wayOutInterval = 5 * time.Second

// wayOut keeps the addresses free that lead to the API server. While an agent did not run, the API server may have moved to an address that a
// Service has on kube-ipvs0, or the node to a nameserver there. The agent would never reach the API server, and never learn that the Service
// must give up the address. So this is written before the first sync (I4).
type wayOut struct {
	due time.Time
	// free are the addresses that are known to be free; nil if a Service of the last known state may have taken one since.
	free []netip.Addr
}

// clearWay releases addresses that lead to the API server, if that is due, and returns when it is due next; zero for never.
func (a *Agent) clearWay(ctx context.Context) time.Time {
	if a.cfg.Contacts == nil {
		return time.Time{}
	}
	if now := time.Now(); !now.Before(a.wayOut.due) {
		a.wayOut.due = now.Add(wayOutInterval)
		if err := a.release(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("releasing addresses that lead to the API server failed; retrying", zap.Error(err))
		}
	}
	return a.wayOut.due
}

// release releases the addresses that lead to the API server.
func (a *Agent) release(ctx context.Context) error {
	needed, err := a.wayToAPIServer(ctx)
	if err != nil || slices.Equal(needed, a.wayOut.free) {
		return err
	}
	have, err := a.kernel.Read(ctx)
	if err != nil {
		return fmt.Errorf("read the kernel's state: %w", err)
	}
	ops := diff.WayOut(diff.NewTarget(compile.NewCluster(a.cfg.Compile).Want()), have, needed)
	for i, err := range a.kernel.Apply(ctx, ops) {
		if err != nil {
			return err
		}
		a.log.Warn("the API server is unavailable, and this address leads to it, so no Service can have it", zap.Stringer("released", ops[i]))
	}
	a.wayOut.free = needed
	return nil
}

// wayToAPIServer lists the addresses of the API server; if its name cannot be resolved, those of the node's nameservers.
func (a *Agent) wayToAPIServer(ctx context.Context) (addrs []netip.Addr, err error) {
	for _, contact := range a.cfg.Contacts() {
		addrs = append(addrs, contact.Addr())
	}
	if len(addrs) == 0 {
		network, err := a.kernel.Network(ctx)
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
