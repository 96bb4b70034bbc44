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
	fit := userspace.Check(settings.InProcess())
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
	compiled.AgentPorts = nil
	host, closeHost, err := serviceAddresses(settings)
	if err != nil {
		return err
	}
	defer closeHost()
	if host == nil {
		compiled.NodePorts = compile.NodePortAddresses{} // the loopback addresses are the only ones
	} else {
		compiled.ExternalIPs.AtNode = compile.AtNodeNone // the agent does not know which ports of the node's addresses are in use
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return source.run(ctx, log) })
	group.Go(func() error {
		return userspace.Run(ctx, userspace.Config{
			Compile: compiled, Host: host, Limits: settings.Forward, Source: source.Source, Changed: cfg.Ports, Log: log,
		})
	})
	err = group.Wait()
	log.Info("stopped; the ports are closed")
	return err
}
