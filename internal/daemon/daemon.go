//go:build linux

package daemon

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/loopback"
	"github.com/kube-ipvs/kube-ipvs/internal/memory"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const drainInterval = 5 * time.Second

// syncSpacing limits the cost of storms. It is far shorter than the time that a client notices.
const syncSpacing = 10 * time.Millisecond

// errStopped means that the context ended before the agent changed anything.
var errStopped = errors.New("stopped")

// Run serves Services until the context ends. The kernel keeps serving after that, unless the data plane is in user space.
func Run(ctx context.Context, cfg Config) error {
	if s := &cfg.Loaded.Settings; s.DataPlane == kernel.DataPlaneUserspace && !s.InProcess() {
		return serveUserspace(ctx, cfg)
	}
	started := time.Now()
	lock, err := awaitLock(ctx, cfg)
	if err == nil {
		defer func() { _ = lock.Release() }()
		lock.Record(cfg.Loaded.Settings.DataPlane)
		err = serve(ctx, cfg, started, lock.Ignored)
	} else if ctx.Err() != nil {
		err = errStopped
	}
	if errors.Is(err, errStopped) {
		cfg.Log.Info("stopped before anything was changed")
		return nil
	}
	return err
}

// serve opens the parts, runs them concurrently and closes them. second describes a process that might be a second
// agent. It is nil if there is none.
func serve(ctx context.Context, cfg Config, started time.Time, second error) error {
	settings, log := &cfg.Loaded.Settings, cfg.Log
	node, err := openNode(ctx, cfg.Machine, settings, log)
	if ctx.Err() != nil {
		return errStopped
	}
	if err != nil {
		return err
	}
	nodes := newNodes(node)
	defer func() { nodes.current().Close(log) }()
	cfg.Machine.ProtectFromOOM(settings.OOMScoreAdj, log)
	source, err := openSource(settings, node.host.NodeName, cfg.Version, log)
	if err != nil {
		return err
	}
	last := openSnapshot(settings, node.host.NodeName, source, log)
	current := newCurrent(cfg.Loaded)
	traffic, err := openTraffic(settings, nodes)
	if err != nil {
		return err
	}
	defer traffic.close(log)
	loopbacks := loopback.New(settings.Forward)
	observer, err := openTelemetry(ctx, cfg, current, nodes, source, last, traffic, loopbacks)
	if err != nil {
		return err
	}
	taint, err := openStartupTaint(settings, node.host.NodeName, source, observer, log)
	if err != nil {
		return err
	}
	reportStart(observer.SetProblem, node, settings, second)
	drift, moved, ready, reload, moves := newSignal(), newSignal(), make(chan struct{}), make(chan agent.Reload), make(chan agent.Move)
	isReady := sync.OnceFunc(func() { close(ready) }) // after the first complete sync
	loopConfig := loopSettings(settings)
	loopConfig.Compile, loopConfig.KernelChanged, loopConfig.AddressesChanged, loopConfig.Reload, loopConfig.Move = node.Config(settings), drift, moved, reload, moves
	loopConfig.Checked = observer.Checked
	ports := newNodePorts(loopbacks, cfg.Machine.SourcePorts, settings, nodes)
	loopConfig.Observe = func(r agent.Report) {
		observer.Observe(r)
		ports.observe(&r)
		last.observe(&r)
		if r.Complete() {
			isReady()
		}
	}
	loopConfig.LastKnown, loopConfig.Contacts = last.lastKnown(), source.contacts
	loop := agent.New(loopConfig, last.record(source.Source), node.Kernel, log)

	node.Kernel.LimitWaits()
	answers := &statusServer{
		version: cfg.Version, started: started, file: cfg.Flags.File, current: current, nodes: nodes, source: source, problems: observer.Problems,
		snapshot: last,
	}
	reloads := &reloader{flags: cfg.Flags, current: current, reload: reload, level: cfg.Level, log: log, nftables: node.Mode.RulesInNFTables(), setPods: podSetter(node.Kernel)}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return source.run(ctx, log) })
	group.Go(func() error { stopsInTime(ctx, observer.Run); return nil }) // its Events use the source's credentials
	group.Go(func() error { ports.run(ctx, observer, log); return nil })
	moving := &mover{cfg.Machine, nodes, current, moves, drift, moved, ports.nodeMoved, observer, log, map[kernel.ServerKey]struct{}{}}
	group.Go(func() error { moving.run(ctx); return nil })
	group.Go(func() error { reloads.run(ctx, configInterval); return nil })
	group.Go(func() error { answers.run(ctx, loop, log); return nil })
	group.Go(func() error { memory.Run(ctx, ready, os.Getenv, log); return nil })
	group.Go(func() error { last.run(ctx); return nil })
	group.Go(func() error { stopsInTime(ctx, func(ctx context.Context) { taint.run(ctx, ready) }); return nil })
	group.Go(func() error { loop.Run(ctx); return nil })
	err = group.Wait()
	log.Info(stopped(node.Mode))
	return err
}

func stopped(mode kernel.Mode) string {
	if mode == kernel.Userspace {
		return "stopped; closing the ports, and removing " + kernel.Device
	}
	return "stopped; the kernel keeps serving"
}

func reportStart(set func(model.Problem), node *Node, settings *config.Settings, second error) {
	if second != nil {
		set(secondAgent(second))
	}
	if node.Mode.NFTablesBalances() && settings.DataPlane == kernel.DataPlaneAuto {
		set(withoutIPVS(node.WhyDataPlane))
	}
}

func secondAgent(why error) model.Problem {
	return model.Problem{
		Field: "node lock", Reason: "another process could be a second agent: " + why.Error(),
		Remedy: "if the process is an agent, stop it, and mount the host's /run/kube-ipvs into all agents of a node; otherwise stop the process",
	}
}

func withoutIPVS(why string) model.Problem {
	return model.Problem{
		Field: dataPlaneField, Value: kernel.DataPlaneAuto,
		Reason: "nftables balances connections, because " + why + ": at random by weight, without schedulers, connection limits or counts",
		Remedy: kernel.LoadModule("ip_vs") + "; the agent then moves to IPVS; or use --data-plane=nftables to accept this",
	}
}

func loopSettings(s *config.Settings) agent.Config {
	tuning := agentSettings(s)
	return agent.Config{
		AuditInterval:  tuning.AuditInterval,
		CheckInterval:  tuning.CheckInterval,
		MinInterval:    tuning.MinInterval,
		Spacing:        syncSpacing,
		DrainInterval:  drainInterval,
		DrainTimeout:   tuning.DrainTimeout,
		CompleteSource: s.Manifests != "",
	}
}

// signal is a channel with a buffer of one. Sending again before the message is received has no effect.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) send() {
	select {
	case s <- struct{}{}:
	default:
	}
}
