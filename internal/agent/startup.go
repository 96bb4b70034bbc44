package agent

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
)

type startup struct {
	lastKnown lastKnown
	wayOut    wayOut
}

func newStartup(cfg *Config, k Kernel, log *zap.Logger) *startup {
	now := time.Now()
	u := &startup{wayOut: wayOut{cfg: cfg, kernel: k, log: log, due: now.Add(wayOutInterval)}}
	u.lastKnown = lastKnown{
		cfg: cfg, kernel: k, state: cfg.LastKnown, due: now.Add(lastKnownAfter),
		added: func() { u.wayOut.free = nil }, // a Service may be using one of these addresses now
	}
	return u
}

func (u *startup) work(ctx context.Context) time.Time {
	return schedule.Earliest(u.lastKnown.serve(ctx), u.wayOut.clear(ctx))
}

func (u *startup) end() { u.lastKnown.state = nil }
