package daemon

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/userspace"
)

// serveUserspace serves Services in this process until the context ends. It needs no privileges, and therefore takes no
// node lock and serves no status socket, health or metrics.
func serveUserspace(ctx context.Context, cfg Config) error {
	settings, log := &cfg.Loaded.Settings, cfg.Log
	fit := userspace.Check()
	logFindings(fit.Findings, log)
	name, err := settings.Hostname()
	if err != nil {
		return err
	}
	source, err := openSource(settings, name, cfg.Version, log)
	if err != nil {
		return err
	}
	compiled := compile.Config{Host: compile.Host{NodeName: name, Families: fit.Families, Mode: kernel.Userspace}, Settings: settings.Compile()}
	compiled.NodePorts, compiled.AgentPorts = compile.NodePortAddresses{}, nil // the loopback addresses are the only ones
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return source.run(ctx, log) })
	group.Go(func() error {
		userspace.Run(ctx, userspace.Config{
			Compile: compiled, Limits: settings.Forward, Source: source.Source, Changed: cfg.Ports, Log: log,
		})
		return nil
	})
	err = group.Wait()
	log.Info("stopped; the ports are closed")
	return err
}
