//go:build linux

package daemon

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
)

const configInterval = 5 * time.Second

// current is the effective configuration. Every goroutine may read it.
type current struct {
	inForce atomic.Pointer[config.Loaded]
	// refused is the error of the current configuration file, or nil if the file is valid.
	refused atomic.Pointer[string]
}

func newCurrent(loaded *config.Loaded) *current {
	c := &current{}
	c.inForce.Store(loaded)
	return c
}

func (c *current) settings() *config.Settings { return &c.inForce.Load().Settings }

func (c *current) fileError() string {
	if why := c.refused.Load(); why != nil {
		return *why
	}
	return ""
}

// reloader passes changes in the configuration file to the agent.
type reloader struct {
	flags   *config.Flags
	current *current
	reload  chan<- agent.Reload
	level   zap.AtomicLevel
	log     *zap.Logger
	// nftables is true if the agent's rules are in nftables. Such rules cannot override the host's firewall.
	nftables bool
	// setPods passes changed ranges of pods to a kernel that has no rules to match them. It is nil with other kernels.
	setPods func([]netip.Prefix)
}

var errAcceptServices = errors.New("accept-service-traffic cannot work with nftables, which this node uses: a rule cannot override a drop in " +
	"another table; allow Service traffic in the host's firewall (docs/coexistence.md), or restart with --rules=iptables")

// run watches the file until the context ends. An invalid file changes nothing.
func (r *reloader) run(ctx context.Context, every time.Duration) {
	watch := func(ctx context.Context) {
		r.flags.Watch(ctx, r.current.inForce.Load(), every, func(changed *config.Loaded, err error) { r.take(ctx, changed, err) })
	}
	if !stopsInTime(ctx, watch) {
		r.log.Warn("the last read of the configuration file did not finish: its file system is not responding", zap.Duration("after", stopLimit))
	}
}

func (r *reloader) take(ctx context.Context, changed *config.Loaded, err error) {
	if err != nil {
		r.refuse(err)
		return
	}
	if r.nftables && changed.AcceptServices {
		r.refuse(errAcceptServices)
		return
	}
	for _, warning := range changed.Warnings {
		r.log.Warn(warning)
	}
	next, waiting := changed.Over(r.current.inForce.Load())
	if len(waiting) > 0 {
		r.log.Warn("some changes need an agent restart", zap.Strings("settings", waiting))
	}
	settings := agent.Reload{Settings: agentSettings(&next.Settings), Changed: next.Changed(r.current.inForce.Load())}
	if r.setPods != nil {
		r.setPods(settings.Compile.Local.CIDRs)
	}
	r.current.inForce.Store(next)
	r.current.refused.Store(nil)
	_ = r.level.UnmarshalText([]byte(next.LogLevel)) // valid: loading checks it
	r.log.Info("configuration reloaded")
	select {
	case r.reload <- settings:
	case <-ctx.Done():
	}
}

// agentSettings returns the settings that can change while the agent is running.
func agentSettings(s *config.Settings) agent.Settings {
	return agent.Settings{
		Compile: s.Compile(), AuditInterval: s.SyncPeriod, CheckInterval: s.CheckPeriod, MinInterval: s.MinSyncPeriod, DrainTimeout: s.DrainTimeout,
	}
}

func (r *reloader) refuse(err error) {
	why := err.Error()
	r.current.refused.Store(&why)
	r.log.Error("the configuration file cannot be used; keeping the previous settings", zap.Error(err))
}
