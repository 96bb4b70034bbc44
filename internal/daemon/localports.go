//go:build linux

package daemon

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/localports"
	"github.com/kube-ipvs/kube-ipvs/internal/loopback"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
)

func thisHost() localports.Host {
	return localports.Host{Range: live.LocalPortRange, Reserved: live.ReservedPorts, Reserve: live.ReservePorts, Record: localports.Record}
}

// nodePorts passes the node ports of Reports to the parts that serve them on loopback addresses and that reserve them.
type nodePorts struct {
	loopbacks *loopback.Ports
	guard     *localports.Guard
}

// newNodePorts returns node ports that are reserved only with IPVS. Where nftables balances, a reply never reaches the rules for new
// connections. The guard then releases the ports that an earlier agent has reserved.
func newNodePorts(loopbacks *loopback.Ports, host localports.Host, settings *config.Settings, nodes *nodes) *nodePorts {
	reserve := settings.ReserveNodePorts
	return &nodePorts{loopbacks, localports.NewGuard(host, func() bool { return reserve && !nodes.current().Mode.NFTablesBalances() })}
}

func (p *nodePorts) observe(r *agent.Report) {
	ports := loopbackPorts(r)
	p.loopbacks.Update(r.LoopbackAddresses, ports)
	p.guard.Update(ports, r.Complete())
}

// nodeMoved reserves or releases node ports after another data plane balances.
func (p *nodePorts) nodeMoved() { p.guard.Update(nil, true) }

func (p *nodePorts) run(ctx context.Context, observer *telemetry.Telemetry, log *zap.Logger) {
	var both sync.WaitGroup
	both.Go(func() { p.loopbacks.Run(ctx, loopbackProblem(observer)) })
	both.Go(func() { runGuard(ctx, p.guard, observer, log) })
	both.Wait()
}

func runGuard(ctx context.Context, guard *localports.Guard, observer *telemetry.Telemetry, log *zap.Logger) {
	const field = "net.ipv4.ip_local_reserved_ports"
	guard.Run(ctx, func(ours kernel.Ports, err error) {
		if err == nil {
			observer.ClearProblem(field)
			log.Info("changed the node ports that this node's own connections do not use as source ports", zap.String("sysctl", field), zap.Stringer("reserved", ours))
			return
		}
		observer.SetProblem(model.Problem{
			Field: field, Reason: "cannot reserve node ports, so this node's own connections may use them as source ports: " + err.Error(),
			Remedy: "reserve the node ports on the host, or accept this with reserveNodePorts: false",
		})
	})
}
