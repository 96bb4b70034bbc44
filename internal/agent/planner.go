package agent

import (
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/slowstart"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type planner struct {
	cfg       *Config
	cluster   *compile.Cluster
	target    *diff.Target
	known     *known.Kernel
	schedule  *schedule.Schedule
	ramps     *slowstart.Ramps
	draining  *drain.Clocks
	stopped   *drain.Stopped
	inherited inherited
	suspects  *diff.Suspects // nil before the first full comparison
	// left contains the objects that the last sync did not get to.
	left *want.Touched
	// reconfigured is true if settings have changed since the last full comparison. changedSettings names the changed
	// settings that no sync has used yet.
	reconfigured    bool
	changedSettings []string
	// waiting is true if writes have waited for unfinished rules since the last full comparison.
	waiting bool
}

func newPlanner(cfg *Config, s *schedule.Schedule) *planner {
	cluster := compile.NewCluster(cfg.Compile)
	return &planner{
		cfg: cfg, cluster: cluster, target: diff.NewTarget(cluster.Want()), known: known.New(cfg.Compile.Mode), schedule: s,
		ramps: slowstart.New(), draining: drain.NewClocks(), stopped: &drain.Stopped{},
	}
}

func (p *planner) reconfigure(settings compile.Settings) {
	p.cluster.Learn(compile.Facts{Settings: &settings})
	p.reconfigured = true
}

func (p *planner) compile(s *syncRun) {
	p.took(s, p.cluster.Compile(s.touched))
}

func (p *planner) compileFirst(s *syncRun, first map[model.ServiceID]*model.Service) {
	p.took(s, p.cluster.Update(first, s.touched))
}

func (p *planner) took(s *syncRun, compiled []model.ServiceID) {
	s.report.compiled(compiled)
	p.target.Follow(s.touched)
}

// inherited compares the objects that an earlier agent left in the kernel with the first lists from the API server.
// If the lists lack most of these objects, the agent cannot tell why: the objects may have been deleted while no
// agent was running, or the API server may have lost its storage, hide objects or belong to another cluster.
// Therefore the agent waits before it changes anything (I15).
type inherited struct {
	until    time.Time
	accepted bool
}
