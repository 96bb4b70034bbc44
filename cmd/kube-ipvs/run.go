package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// drainInterval is how often the connections of draining destinations are counted.
const drainInterval = 5 * time.Second

func newRun() *cobra.Command {
	flags := &config.Flags{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make the Services of the cluster work on this node",
		Long: `run serves the Services of an API server, or of a directory of manifests, on this node until it
is told to stop (SIGTERM, SIGINT). It then leaves the kernel as it is: Services go on working.

It needs root (CAP_NET_ADMIN and CAP_NET_RAW), a kernel with ip_vs, ip_set, nf_conntrack and dummy,
and the iptables programs.`,
		Example: `  kube-ipvs run --kubeconfig /etc/kubernetes/kube-ipvs.conf --cluster-cidr 10.244.0.0/16
  kube-ipvs run --manifests /etc/kube-ipvs/manifests --detect-local-mode BridgeInterface --pod-bridge-interface cni0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLogger(cmd.ErrOrStderr(), flags.LogLevel, flags.LogFormat)
			if err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			if err := flags.Run(); err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			if _, err := flags.Compile(inet.Families); err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			return run(cmd.Context(), flags, log)
		},
	}
	flags.AddRun(cmd.Flags())
	return cmd
}

// run wires the parts together and works until the context ends.
func run(ctx context.Context, flags *config.Flags, log *zap.Logger) error {
	node, err := openNode(ctx, flags, log)
	if ctx.Err() != nil {
		log.Info("stopped before anything was changed")
		return nil
	}
	if err != nil {
		return err
	}
	defer node.close(log)
	source, err := openSource(flags, node.compile.Node, log)
	if err != nil {
		return err
	}
	tell, err := openTelemetry(flags, node, log)
	if err != nil {
		return err
	}
	disturbed := make(chan struct{}, 1)
	loop := agent.New(agent.Config{
		Compile:            node.compile,
		LocalCIDRsFromNode: flags.LocalCIDRsFromNode(),
		AuditInterval:      flags.SyncPeriod,
		DrainInterval:      drainInterval,
		DrainTimeout:       flags.DrainTimeout,
		Disturbed:          disturbed,
		Observe:            tell.Observe,
	}, source, node.kernel, log)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return source.Run(ctx) })
	group.Go(func() error { tell.Run(ctx); return nil })
	group.Go(func() error {
		node.kernel.Watch(ctx, func() {
			select {
			case disturbed <- struct{}{}:
			default: // told already
			}
		})
		return nil
	})
	group.Go(func() error { loop.Run(ctx); return nil })
	err = group.Wait()
	log.Info("stopped; the kernel goes on serving")
	return err
}

// source is where Services come from, and what must run for it.
type source interface {
	agent.Source
	Run(context.Context) error
}

func openSource(flags *config.Flags, nodeName string, log *zap.Logger) (source, error) {
	if flags.Manifests != "" {
		log.Info("serving manifests", zap.String("directory", flags.Manifests))
		return watch.NewManifests(flags.Manifests, nodeName, log), nil
	}
	watch.RedirectKlog(log)
	rest, err := watch.RESTConfig(flags.Kubeconfig, flags.Master)
	if err != nil {
		return nil, errors.Join(err, errors.New("or give --manifests DIR to serve manifests without an API server"))
	}
	log.Info("watching the API server", zap.String("address", rest.Host), zap.String("node", nodeName))
	source, err := watch.NewAPI(rest, watch.Options{NodeName: nodeName, UserAgent: "kube-ipvs/" + version, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("open the API server's client: %w", err)
	}
	return source, nil
}

// openTelemetry returns what tells the world of the agent. Events go to the API server that is the source, if one is.
func openTelemetry(flags *config.Flags, node *node, log *zap.Logger) (*telemetry.Telemetry, error) {
	var api *rest.Config
	if flags.Manifests == "" {
		var err error
		if api, err = watch.RESTConfig(flags.Kubeconfig, flags.Master); err != nil {
			return nil, err
		}
	}
	build := buildVersion()
	return telemetry.New(telemetry.Config{
		Version:        build.Version,
		Commit:         build.Commit,
		Node:           node.compile.Node,
		Families:       node.compile.Families,
		SyncPeriod:     flags.SyncPeriod,
		HealthAddress:  flags.HealthAddress,
		MetricsAddress: flags.MetricsAddress,
		Profiling:      flags.Profiling,
		API:            api,
		Log:            log,
	})
}
