package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
)

// drainInterval is how often the connections of draining destinations are counted.
const drainInterval = 5 * time.Second

func newRun(m *machine) *cobra.Command {
	var flags config.Flags
	var detour detour
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make the Services of the cluster work on this node",
		Long: `run serves the Services of an API server, or of a directory of manifests, on this node until it
is told to stop (SIGTERM, SIGINT). It then leaves the kernel as it is: Services go on working.

It needs root (CAP_NET_ADMIN and CAP_NET_RAW), a kernel with ip_vs, ip_set, nf_conntrack and dummy,
and the iptables programs. Where it may not write sysctls, a start with --init-only and full root
privileges sets them before.

All flags of kube-proxy are accepted; what does not apply is named in a warning.`,
		Example: `  kube-ipvs run --kubeconfig /etc/kubernetes/kube-ipvs.conf --cluster-cidr 10.244.0.0/16
  kube-ipvs run --manifests /etc/kube-ipvs/manifests --detect-local-mode BridgeInterface --pod-bridge-interface cni0`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := flags.Load()
			if err := errors.Join(err, detour.check()); err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			if do, is := detour.instead(cmd, m, loaded); is {
				tellWarnings(cmd, loaded)
				return do()
			}
			log, level, err := newLogger(cmd.ErrOrStderr(), loaded.LogLevel, loaded.LogFormat)
			if err != nil {
				return err
			}
			for _, warning := range loaded.Warnings {
				log.Warn(warning)
			}
			return run(cmd.Context(), m, &flags, loaded, level, log)
		},
	}
	flags.AddRun(cmd.Flags())
	detour.addFlags(cmd)
	return cmd
}

// run wires the parts together and works until the context ends.
func run(ctx context.Context, m *machine, flags *config.Flags, loaded *config.Loaded, level zap.AtomicLevel, log *zap.Logger) error {
	settings, started := &loaded.Settings, time.Now()
	lock, err := nodelock.Acquire(ctx, func(held error) {
		log.Warn("waiting for the node lock", zap.Error(held))
	})
	if ctx.Err() != nil {
		log.Info("stopped before anything was changed")
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }()
	node, err := openNode(ctx, m, settings, log)
	if ctx.Err() != nil {
		log.Info("stopped before anything was changed")
		return nil
	}
	if err != nil {
		return err
	}
	defer node.close(log)
	protectFromOOM(settings.OOMScoreAdj, log)
	from, err := node.openSource(settings, log)
	if err != nil {
		return err
	}
	current := newCurrent(loaded)
	traffic, err := openTraffic(settings)
	if err != nil {
		return err
	}
	defer traffic.close(log)
	tell, err := openTelemetry(current, node, from, traffic, log)
	if err != nil {
		return err
	}
	disturbed, moved, reload := newBell(), newBell(), make(chan agent.Settings)
	tuning := agentSettings(settings)
	loop := agent.New(agent.Config{
		Compile:       node.config(settings),
		AuditInterval: tuning.AuditInterval,
		MinInterval:   tuning.MinInterval,
		DrainInterval: drainInterval,
		DrainTimeout:  tuning.DrainTimeout,
		Disturbed:     disturbed,
		Moved:         moved,
		Reload:        reload,
		Observe:       tell.Observe,
	}, from.source, node.kernel, log)

	answers := &answerer{started: started, file: flags.File, current: current, node: node, from: from}
	reloads := &reloader{flags: flags, current: current, reload: reload, level: level, log: log}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return from.source.Run(ctx) })
	group.Go(func() error { tell.Run(ctx); return nil })
	group.Go(func() error { node.kernel.Watch(ctx, disturbed.ring, moved.ring); return nil })
	group.Go(func() error { reloads.run(ctx, configInterval); return nil })
	group.Go(func() error { answers.run(ctx, loop, log); return nil })
	group.Go(func() error { loop.Run(ctx); return nil })
	err = group.Wait()
	log.Info("stopped; the kernel goes on serving")
	return err
}

// bell is ready once, however often it rings before somebody hears it.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default: // it rings already
	}
}
