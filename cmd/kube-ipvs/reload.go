package main

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
)

// configInterval is how often the configuration file is read.
const configInterval = 5 * time.Second

// current is the configuration that the agent works with, for those who ask.
type current struct {
	inForce atomic.Pointer[config.Loaded]
	// refused says why the file as it is now cannot be used; nil if it can.
	refused atomic.Pointer[string]
}

func newCurrent(loaded *config.Loaded) *current {
	c := &current{}
	c.inForce.Store(loaded)
	return c
}

func (c *current) settings() *config.Settings { return &c.inForce.Load().Settings }

// whyRefused is empty if the file can be used.
func (c *current) whyRefused() string {
	if why := c.refused.Load(); why != nil {
		return *why
	}
	return ""
}

// reloader hands the agent what changes in the configuration file.
type reloader struct {
	flags   *config.Flags
	current *current
	reload  chan<- agent.Settings
	level   zap.AtomicLevel
	log     *zap.Logger
}

// run watches the file until the context ends. A file that cannot be used changes nothing.
func (r *reloader) run(ctx context.Context, every time.Duration) {
	r.flags.Watch(ctx, r.current.inForce.Load(), every, func(changed *config.Loaded, err error) {
		if err != nil {
			r.refuse(err)
			return
		}
		for _, warning := range changed.Warnings {
			r.log.Warn(warning)
		}
		next, waiting := changed.Over(r.current.inForce.Load())
		if len(waiting) > 0 {
			r.log.Warn("some changes need an agent restart", zap.Strings("settings", waiting))
		}
		r.current.inForce.Store(next)
		r.current.refused.Store(nil)
		setLevel(r.level, next.LogLevel)
		r.log.Info("taking changed settings")
		select {
		case r.reload <- agentSettings(&next.Settings):
		case <-ctx.Done():
		}
	})
}

// agentSettings are the settings that an agent can change while it runs.
func agentSettings(s *config.Settings) agent.Settings {
	return agent.Settings{Compile: s.Compile(), AuditInterval: s.SyncPeriod, MinInterval: s.MinSyncPeriod, DrainTimeout: s.DrainTimeout}
}

func (r *reloader) refuse(err error) {
	why := err.Error()
	r.current.refused.Store(&why)
	r.log.Error("the configuration file cannot be used; going on with the settings from before", zap.Error(err))
}
