package agent

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Source is where Services come from.
type Source interface {
	// Changed is ready when Take has something new, or when Synced has become true.
	Changed() <-chan struct{}
	// Synced says whether everything that exists has been heard of once. Before that nothing is written (I4).
	Synced() bool
	// Take returns what has changed since it was last called.
	Take() model.Changes
}

// Kernel is the node's kernel.
type Kernel interface {
	// Read returns everything of ours and what of others concerns us. With an error nothing is known, not even in part.
	Read(context.Context) (*kernel.State, error)
	// Lookup returns those of the virtual servers that exist.
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// Apply tries every operation in order and returns one error (or nil) for each.
	Apply(context.Context, []kernel.Op) []error
}

// Config of an agent.
type Config struct {
	Compile compile.Config
	// LocalCIDRsFromNode takes the local clients' ranges from the node's object.
	LocalCIDRsFromNode bool
	// AuditInterval is how often the whole kernel state is compared though nothing has changed.
	AuditInterval time.Duration
	// DrainInterval is how often draining destinations are looked at, DrainTimeout how long they may keep connections.
	DrainInterval, DrainTimeout time.Duration
	// Disturbed is ready when somebody else may have changed the kernel: an audit follows at once. It may be nil.
	Disturbed <-chan struct{}
	// Observe gets a report of every pass; it may be nil.
	Observe func(Report)
}

// The first retry after a failure follows after retryMin; each further failure doubles the wait up to AuditInterval.
const retryMin = 100 * time.Millisecond

// auditMin is the least time between two audits, however much somebody else changes.
const auditMin = time.Second

// Agent keeps one node's kernel as the cluster wants it.
type Agent struct {
	cfg     Config
	source  Source
	kernel  Kernel
	log     *zap.Logger
	cluster *compile.Cluster

	// have is what the kernel holds as far as we know: read by audits, advanced by successful operations. It is nil until
	// the kernel has been read.
	have *kernel.State
	// stale is set when have may differ from the kernel although nothing failed.
	stale bool
	// ours are the virtual servers known to be ours, so that somebody who empties the ledger while we run takes nothing from
	// us. A restart finds all of this in the kernel again.
	ours map[kernel.ServerKey]struct{}
	// contested are virtual servers of others for which the ledger may still have an entry of ours.
	contested map[kernel.ServerKey]struct{}
	doubtful  doubtful
	// failures of the last pass, or nil.
	failures *diff.Failures
	// retryAt is when to read and compare everything again after a failure; zero after success.
	retryAt    time.Time
	retryAfter time.Duration
	auditAt    time.Time
	lastRead   time.Time
	drains     drains
	// inPlace is true once a whole pass has succeeded.
	inPlace bool
	// told are the warnings about foreign objects that were logged already, toldOf those about Services.
	told map[string]bool
	// toldFailed are the operations of which was logged that and why they failed.
	toldFailed map[string]bool
	toldOf     map[model.ServiceID][]model.Problem
}

// New returns an agent that has not started.
func New(cfg Config, source Source, k Kernel, log *zap.Logger) *Agent {
	return &Agent{
		cfg:       cfg,
		source:    source,
		kernel:    k,
		log:       log,
		cluster:   compile.NewCluster(cfg.Compile),
		ours:      map[kernel.ServerKey]struct{}{},
		contested: map[kernel.ServerKey]struct{}{},
		doubtful:  doubtful{},
		toldOf:    map[model.ServiceID][]model.Problem{},
	}
}

// Run works until the context ends. It leaves the kernel as it is: packets go on being served.
func (a *Agent) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.source.Changed():
		case <-a.cfg.Disturbed:
			a.auditSoon()
		case <-timer.C:
		}
		if !a.source.Synced() {
			continue
		}
		a.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(time.Until(a.nextWake()))
	}
}

// Plan returns what the next pass would do, and does nothing.
func (a *Agent) Plan(ctx context.Context) (diff.Plan, error) {
	var report Report
	touched := a.compile(&report)
	return a.plan(ctx, time.Now(), touched, &report)
}

// pass brings the kernel to what the cluster wants now.
func (a *Agent) pass(ctx context.Context) {
	now := time.Now()
	report := Report{Started: now}
	touched := a.compile(&report)

	plan, err := a.plan(ctx, now, touched, &report)
	if err == nil {
		a.apply(ctx, plan, &report)
		err = report.firstError()
	} else {
		a.doubtful.addAll(touched)
	}
	if ctx.Err() != nil {
		return // asked to stop: what failed because of that is no failure
	}
	report.Err = err
	a.schedule(now, &report)
	a.drains.update(now, a.cfg.DrainInterval, a.cluster.Want(), a.have, plan, report.Full)
	report.finish(time.Since(now), a.cluster)
	a.logReport(&report)
	if a.cfg.Observe != nil {
		a.cfg.Observe(report)
	}
}

// compile takes the changes of the cluster into the wanted state.
func (a *Agent) compile(report *Report) *want.Touched {
	touched := want.NewTouched()
	changes := a.source.Take()
	if a.cfg.LocalCIDRsFromNode && changes.LocalPodCIDRs != nil {
		a.cluster.SetLocalCIDRs(changes.LocalPodCIDRs, touched)
	}
	report.Compiled = a.cluster.Update(changes.Services, touched)
	report.Unreadable = changes.Problems
	return touched
}
