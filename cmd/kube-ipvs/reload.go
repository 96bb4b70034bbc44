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

// inForce holds the configuration that the agent works with, for those who ask.
func inForce(loaded *config.Loaded) *atomic.Pointer[config.Loaded] {
	var p atomic.Pointer[config.Loaded]
	p.Store(loaded)
	return &p
}

// watchFile hands the agent what changes in the configuration file. A file that cannot be used changes nothing.
func watchFile(ctx context.Context, flags *config.Flags, running *atomic.Pointer[config.Loaded], node *node, reload chan<- agent.Settings,
	level zap.AtomicLevel, log *zap.Logger,
) {
	flags.Watch(ctx, running.Load(), configInterval, func(changed *config.Loaded, err error) {
		if err != nil {
			log.Error("the configuration file cannot be used; going on with the settings from before", zap.Error(err))
			return
		}
		for _, warning := range changed.Warnings {
			log.Warn(warning)
		}
		next, waiting := changed.Over(running.Load())
		if len(waiting) > 0 {
			log.Warn("some changed settings wait for a restart of the agent", zap.Strings("settings", waiting))
		}
		compiled, err := node.reconfigured(&next.Settings)
		if err != nil {
			log.Error("the configuration file cannot be used; going on with the settings from before", zap.Error(err))
			return
		}
		running.Store(next)
		setLevel(level, next.LogLevel)
		log.Info("taking changed settings")
		select {
		case reload <- agent.Settings{
			Compile: compiled, AuditInterval: next.SyncPeriod, MinInterval: next.MinSyncPeriod, DrainTimeout: next.DrainTimeout,
		}:
		case <-ctx.Done():
		}
	})
}
