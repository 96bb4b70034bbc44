package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

type tables interface {
	Read(context.Context, inet.Family) (kernel.RulesView, error)
	Apply(context.Context, []kernel.Op) []error
}

// byFamily reads and writes the iptables rules of each family. Each family has its own patient, so a hung program of one family does not
// block the other family (I16).
type byFamily struct{ of map[inet.Family]*patient }

func (b *byFamily) Read(ctx context.Context) (map[inet.Family]kernel.RulesView, kernel.RulesError) {
	views, errs := map[inet.Family]kernel.RulesView{}, kernel.RulesError{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for f, patient := range b.of {
		wg.Go(func() {
			view, err := patient.Read(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs[f] = err
			} else {
				views[f] = view
			}
		})
	}
	wg.Wait()
	return views, errs
}

func (b *byFamily) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		rules, _ := op.Object.(kernel.Ruleset)
		if patient := b.of[rules.Family]; patient != nil {
			errs[i] = patient.Apply(ctx, op)
		} else {
			errs[i] = fmt.Errorf("%s: %w", op, kernel.ErrUnavailable)
		}
	}
	return errs
}

const (
	// remembered is the number of recent calls that determine the time limit of the next call. longestWait is the highest time limit.
	remembered  = 10
	longestWait = 30 * time.Second
	// shortWait is the time limit of a call after a failed call. If a read takes longer, the next read returns its result.
	shortWait = time.Second
	// maxLate is the maximum age of the result of a read that ended late.
	maxLate = 2 * longestWait
)

// patient runs the iptables backend's calls for one family in a separate goroutine, one at a time. It waits for them only for a limited
// time, because iptables programs can hang (I16). The limit depends on how long calls take on this node. If a read ends late, the next call
// to Read returns its result.
type patient struct {
	tables tables
	family inet.Family
	jobs   thread
	// ended receives a value when a call ends after its caller has stopped waiting.
	ended chan struct{}
	// free contains a token while no call runs.
	free chan struct{}

	mu sync.Mutex
	// If limited is false, calls have no time limit.
	limited bool
	// doing describes the last call, and since is when it started.
	doing string
	since time.Time
	// troubleSince is the start of the first failed or late call since the last success. It is zero if there is none.
	troubleSince time.Time
	took         []time.Duration
	// late is the result of a read that ended after its caller stopped waiting. It is nil if there is no such result, or if it is
	// outdated. lateAt is when that read began. writes counts writes, because a read that began before a write is outdated.
	late   *kernel.RulesView
	lateAt time.Time
	writes uint64
	// usedLate counts the reads that returned late.
	usedLate int
}

// newPatient starts the goroutine in the network namespace of the calling thread.
func newPatient(t tables, f inet.Family) (*patient, error) {
	jobs, err := newThread()
	p := &patient{tables: t, family: f, jobs: jobs, ended: make(chan struct{}, 1), free: make(chan struct{}, 1)}
	p.free <- struct{}{}
	return p, err
}

func (p *patient) close() { close(p.jobs) }

// Read returns the rules, possibly from a read that ended late.
func (p *patient) Read(ctx context.Context) (kernel.RulesView, error) {
	p.mu.Lock()
	late, writes := p.late, p.writes
	if time.Since(p.lateAt) > maxLate {
		late = nil
	}
	if p.late = nil; late != nil {
		p.usedLate++
	}
	p.mu.Unlock()
	if late != nil {
		return *late, nil
	}
	began := time.Now()
	var found kernel.RulesView
	read := func() (err error) {
		found, err = p.tables.Read(ctx, p.family)
		return err
	}
	keep := func() {
		if p.writes == writes {
			p.late, p.lateAt = &found, began
		}
	}
	if _, err := p.do(ctx, "reading the rules", read, keep); err != nil {
		return kernel.RulesView{}, err
	}
	return found, nil
}

func (p *patient) Apply(ctx context.Context, op kernel.Op) error {
	p.mu.Lock()
	p.late = nil // the write makes this result stale, and also that of a read in progress
	p.writes++
	p.mu.Unlock()
	var failure error
	write := func() error {
		failure = p.tables.Apply(ctx, []kernel.Op{op})[0]
		if failure != nil && !errors.Is(failure, context.DeadlineExceeded) {
			return errOfOperation
		}
		return failure
	}
	known, err := p.do(ctx, "writing the rules", write, func() {})
	if known {
		return failure
	}
	return fmt.Errorf("%s: %w", op, err) // do not use failure, because the call may still write it
}

// errOfOperation means that an operation failed. The cause may be the rules rather than the iptables programs, so the error does not affect
// troubleSince.
var errOfOperation = errors.New("the operation failed")

// do runs a call. It returns a StuckError if the call fails or has not ended in time. known is true if the call has ended; only then may
// the caller use its results. If the call succeeds after do has returned, late is called with the lock held.
func (p *patient) do(ctx context.Context, what string, call func() error, late func()) (known bool, err error) {
	if !p.acquire(ctx) {
		return false, p.stuck(ctx)
	}
	start := time.Now()
	p.mu.Lock()
	p.doing, p.since = what, start
	p.mu.Unlock()

	done, abandoned := make(chan error, 1), false
	p.jobs <- func() {
		err := call()
		p.mu.Lock()
		defer p.mu.Unlock()
		if ctx.Err() == nil {
			p.note(start, err)
		}
		done <- err
		p.free <- struct{}{}
		if !abandoned {
			return
		}
		if err == nil {
			late()
		}
		select {
		case p.ended <- struct{}{}:
		default:
		}
	}
	patience, stop := p.patience()
	defer stop()
	select {
	case err := <-done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return true, p.ending(ctx, what, err)
	case <-patience:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case err := <-done: // the call has just ended
		return true, p.ending(ctx, what, err)
	default:
	}
	abandoned = true
	if err := ctx.Err(); err != nil {
		return false, err
	}
	p.trouble(start)
	return false, kernel.StuckError{Part: kernel.Programs(p.family), Doing: what, Since: p.troubleSince}
}

// acquire waits until no other call is running, but no longer than the time limit of a call.
func (p *patient) acquire(ctx context.Context) bool {
	patience, stop := p.patience()
	defer stop()
	select {
	case <-p.free:
		return true
	case <-patience:
	case <-ctx.Done():
	}
	return false
}

// patience returns a channel that fires at the time limit of a call that begins now.
func (p *patient) patience() (<-chan time.Time, func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.limited {
		return nil, func() bool { return true }
	}
	timer := time.NewTimer(p.limit())
	return timer.C, timer.Stop
}

func (p *patient) limitWaits() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limited = true
}

// limit returns the time limit of a call: the wait for the xtables lock, plus several times the duration of the slowest recent call.
func (p *patient) limit() time.Duration {
	if !p.troubleSince.IsZero() {
		return shortWait
	}
	limit := iptables.LockWait
	if len(p.took) > 0 {
		limit += 3 * slices.Max(p.took)
	}
	return min(limit, longestWait)
}

// note records how a call ended. Only a success resets troubleSince, because killing a hung program does not make it work.
func (p *patient) note(start time.Time, err error) {
	if errors.Is(err, errOfOperation) {
		return
	}
	if err != nil {
		p.trouble(start)
		return
	}
	p.troubleSince = time.Time{}
	p.took = append(p.took, time.Since(start))
	p.took = p.took[max(0, len(p.took)-remembered):]
}

func (p *patient) trouble(since time.Time) {
	if p.troubleSince.IsZero() {
		p.troubleSince = since
	}
}

func (p *patient) stuck(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	p.trouble(p.since)
	return kernel.StuckError{Part: kernel.Programs(p.family), Doing: p.doing, Since: p.troubleSince}
}

func (p *patient) ending(ctx context.Context, what string, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errOfOperation) {
		return err
	}
	return kernel.StuckError{Part: kernel.Programs(p.family), Doing: what, Since: p.troubleSince, Cause: err}
}

// watch runs until ctx ends. It calls ended whenever a call ends after its caller has stopped waiting.
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
