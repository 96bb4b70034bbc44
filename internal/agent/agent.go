package agent

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
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
	// HasDevice says whether kube-ipvs0 exists, without reading anything else.
	HasDevice(context.Context) (bool, error)
	// Lookup returns those of the virtual servers that exist.
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// Apply tries every operation in order and returns one error (or nil) for each.
	Apply(context.Context, []kernel.Op) []error
	// NodeAddresses returns the addresses of the node's interfaces other than kube-ipvs0. With an error nothing is known.
	NodeAddresses(context.Context) ([]netip.Addr, error)
	// Schedulers says which of these schedulers the kernel has, and loads their modules where it can. One of which nothing can be
	// learnt is missing in the answer.
	Schedulers(ctx context.Context, names []string) map[string]bool
	// EndFlows forgets the tracked connections of these protocols that are stale, and says how many it forgot.
	EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error)
}

// Config of an agent.
type Config struct {
	Compile compile.Config
	// AuditInterval is how often the whole kernel state is compared though nothing has changed.
	AuditInterval time.Duration
	// MinInterval is the least time between the starts of two passes.
	MinInterval time.Duration
	// DrainInterval is how often draining destinations are looked at, DrainTimeout how long they may keep connections.
	DrainInterval, DrainTimeout time.Duration
	// Disturbed is ready when somebody else may have changed the kernel: an audit follows at once. It may be nil.
	Disturbed <-chan struct{}
	// Moved is ready when the node's own addresses may have changed. It may be nil.
	Moved <-chan struct{}
	// Reload delivers settings that have changed. It may be nil.
	Reload <-chan Settings
	// Observe gets a report of every pass; it may be nil.
	Observe func(Report)
}

// Settings are those that can change at run time.
type Settings struct {
	Compile                                  compile.Settings
	AuditInterval, MinInterval, DrainTimeout time.Duration
}

// maxTriggers bounds the changes that are remembered while the kernel cannot be written.
const maxTriggers = 10_000

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
	// lacking are schedulers that the kernel was found not to have since the last pass.
	lacking map[string]struct{}
	// learnt are the schedulers of which the kernel has said whether it has them.
	learnt map[string]bool
	// unsettable are optional sysctls that the kernel did not let us set: it will not later either.
	unsettable map[kernel.SysctlSetting]bool
	// failures of the last pass, or nil.
	failures *diff.Failures
	// retryAt is when to read and compare everything again after a failure; zero after success.
	retryAt    time.Time
	retryAfter time.Duration
	auditAt    time.Time
	lastRead   time.Time
	drains     drains
	// moved is true while the node's addresses have to be read.
	moved bool
	// triggers are those of changes that may not all be in the kernel yet.
	triggers []model.Trigger
	// notBefore is when the next pass may begin though something has changed.
	notBefore time.Time
	// settings are new ones that the next pass takes; nil if there are none.
	settings *Settings
	flows    flows
	ramps    ramps
	drained  drained
	// asks are what others want to know of the loop; history is what it remembers for them.
	asks    chan question
	history history
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
		cfg:        cfg,
		source:     source,
		kernel:     k,
		log:        log,
		cluster:    compile.NewCluster(cfg.Compile),
		ours:       map[kernel.ServerKey]struct{}{},
		contested:  map[kernel.ServerKey]struct{}{},
		doubtful:   doubtful{},
		lacking:    map[string]struct{}{},
		learnt:     map[string]bool{},
		unsettable: map[kernel.SysctlSetting]bool{},
		moved:      true,
		flows:      newFlows(),
		ramps:      ramps{began: map[kernel.ServerKey]map[netip.AddrPort]time.Time{}},
		asks:       make(chan question),
		history:    history{unreadable: map[string][]model.Problem{}},
		toldOf:     map[model.ServiceID][]model.Problem{},
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
		case <-a.cfg.Moved:
			a.moved = true
		case settings := <-a.cfg.Reload:
			a.settings = &settings
			a.auditAt = time.Now()
		case q := <-a.asks:
			q.answer <- a.view(time.Now(), q.ask)
			continue
		case <-timer.C:
		}
		if !a.source.Synced() {
			continue
		}
		if wait := time.Until(a.notBefore); wait > 0 {
			timer.Reset(wait)
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
	touched := want.NewTouched()
	changes := a.source.Take()
	if err := a.learn(ctx, changes, touched, &report); err != nil {
		return diff.Plan{}, err
	}
	a.cluster.Update(changes.Services, touched)
	return a.plan(ctx, time.Now(), touched, &report)
}

// pass brings the kernel to what the cluster wants now.
func (a *Agent) pass(ctx context.Context) {
	now := time.Now()
	a.notBefore = now.Add(a.cfg.MinInterval)
	report := Report{Started: now, Period: a.cfg.AuditInterval}
	plan, err := a.bringAbout(ctx, now, &report)
	if ctx.Err() != nil {
		return // asked to stop: what failed because of that is no failure
	}
	report.Err = err
	a.schedule(now, &report)
	if report.flowsErr != nil {
		// Nothing that we remember of the kernel is in doubt because of this, so nothing is read anew.
		report.Err = errors.Join(err, report.flowsErr)
		report.RetryAfter = cmp.Or(report.RetryAfter, flowsInterval)
	}
	a.drains.update(now, a.cfg.DrainInterval, a.cluster.Want(), a.have, plan, report.Full)
	if err == nil {
		report.Programmed, a.triggers = a.triggers, nil
	}
	report.Draining = a.drains.count()
	a.noteDrained(&report)
	report.finish(time.Since(now), a.cluster)
	a.history.note(&report)
	a.logReport(&report)
	if a.cfg.Observe != nil {
		a.cfg.Observe(report)
	}
}

// bringAbout compiles, plans and applies.
func (a *Agent) bringAbout(ctx context.Context, now time.Time, report *Report) (diff.Plan, error) {
	touched := want.NewTouched()
	changes := a.source.Take()
	moved := a.learn(ctx, changes, touched, report)
	if moved == nil {
		a.lead(ctx, now, changes.Services, touched, report)
	}
	report.compiled(a.cluster.Update(changes.Services, touched))
	compiled := time.Now()
	report.Stages.Compile = compiled.Sub(now) - report.Stages.Lead
	if moved != nil && a.have == nil {
		// Which addresses node ports are served at is not known at all: what is there from before must stay.
		a.putOff(now, touched)
		return diff.Plan{}, moved
	}
	plan, err := a.plan(ctx, now, touched, report)
	planned := time.Now()
	report.Stages.Plan = planned.Sub(compiled)
	if err != nil {
		a.putOff(now, touched)
		return diff.Plan{}, errors.Join(err, moved)
	}
	a.apply(ctx, plan, report)
	a.endFlows(ctx, now, report)
	report.Stages.Apply = time.Since(planned)
	return plan, errors.Join(report.firstError(), moved)
}

// putOff leaves what a pass that could not be planned should have done to a later one.
func (a *Agent) putOff(now time.Time, touched *want.Touched) {
	a.doubtful.addAll(touched)
	a.flows.lookAt = now.Add(flowsInterval)
	if a.ramps.due(now) {
		a.ramps.next = now.Add(retryMin)
	}
}
