package live

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// rules is the iptables backend as used by the loop.
type rules interface {
	Read(context.Context) (map[inet.Family]kernel.RulesView, error)
	Apply(context.Context, []kernel.Op) []error
	FindOldRules(context.Context) ([]kernel.OldRules, error)
}

// patient runs the iptables backend's calls in a separate goroutine and waits a limited time for them, because iptables is a program, and
// programs hang (I16). While one call runs, all others fail immediately. The result of a read that ends late is returned by the next call of
// Read.
type patient struct {
	rules rules
	limit time.Duration
	jobs  thread
	// ended receives when a call has ended after its caller stopped waiting.
	ended chan struct{}

	mu sync.Mutex
	// busy is the running call, and since the time it started; empty if none runs.
	busy  string
	since time.Time
	// late is the result of a read that ended after its caller stopped waiting; nil if there is none or if it is outdated.
	late map[inet.Family]kernel.RulesView
}

// newPatient starts the goroutine in the network namespace of the calling thread.
func newPatient(r rules, limit time.Duration) (*patient, error) {
	jobs, err := newThread()
	return &patient{rules: r, limit: limit, jobs: jobs, ended: make(chan struct{}, 1)}, err
}

func (p *patient) close() { close(p.jobs) }

// Read returns the rules, possibly from a read that ended late.
func (p *patient) Read(ctx context.Context) (map[inet.Family]kernel.RulesView, error) {
	p.mu.Lock()
	late := p.late
	p.late = nil
	p.mu.Unlock()
	if late != nil {
		return late, nil
	}
	var found map[inet.Family]kernel.RulesView
	var err error
	if stuck := p.do("reading the rules", func() { found, err = p.rules.Read(ctx) }, func() { p.late = found }); stuck != nil {
		return nil, stuck
	}
	return found, err
}

// Apply executes the operations in order.
func (p *patient) Apply(ctx context.Context, ops []kernel.Op) []error {
	p.mu.Lock()
	p.late = nil // about to be outdated
	p.mu.Unlock()
	var errs []error
	if stuck := p.do("writing the rules", func() { errs = p.rules.Apply(ctx, ops) }, func() {}); stuck != nil {
		errs = make([]error, len(ops))
		for i, op := range ops {
			errs[i] = fmt.Errorf("%s: %w", op, stuck)
		}
	}
	return errs
}

// FindOldRules looks into the other iptables variant.
func (p *patient) FindOldRules(ctx context.Context) (old []kernel.OldRules, err error) {
	if stuck := p.do("looking for old rules", func() { old, err = p.rules.FindOldRules(ctx) }, func() {}); stuck != nil {
		return nil, stuck
	}
	return old, err
}

// do runs a call. It returns an error if the call has not ended in time, or if another one still runs; the call's results must not be used
// then. When such a call ends, late is called with the lock held.
func (p *patient) do(what string, call, late func()) error {
	p.mu.Lock()
	if p.busy != "" {
		defer p.mu.Unlock()
		return kernel.StuckError{Part: "iptables", Doing: p.busy, Since: p.since}
	}
	start := time.Now()
	p.busy, p.since = what, start
	p.mu.Unlock()

	done, abandoned := make(chan struct{}), false
	p.jobs <- func() {
		call()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy = ""
		if abandoned {
			late()
			select {
			case p.ended <- struct{}{}:
			default:
			}
		}
		close(done)
	}
	timer := time.NewTimer(p.limit)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == "" { // the call has just ended
		return nil
	}
	abandoned = true
	return kernel.StuckError{Part: "iptables", Doing: what, Since: start}
}

// watch calls ended when a call has ended after its caller stopped waiting, until ctx ends.
func (p *patient) watch(ctx context.Context, ended func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.ended:
			ended()
		}
	}
}
