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

// rules is the iptables backend as used by the loop.
type rules interface {
	Read(context.Context) (map[inet.Family]kernel.RulesView, error)
	Apply(context.Context, []kernel.Op) []error
}

const (
	// remembered is how many of the last calls decide how long the next one may take, longestWait how long it may take at most.
	remembered  = 10
	longestWait = 30 * time.Second
	// shortWait is how long a call may take after one that did not succeed. Its result is not lost when it takes longer.
	shortWait = time.Second
	// maxLate is how old the result of a read may be that ended late.
	maxLate = 2 * longestWait
)

// patient runs the iptables backend's calls in a separate goroutine, one at a time, and waits a limited time for them, because iptables is a
// program, and programs hang (I16). The limit follows what calls have taken on this node. The result of a read that ends late is returned by
// the next call of Read.
type patient struct {
	rules rules
	jobs  thread
	// ended receives when a call has ended after its caller stopped waiting.
	ended chan struct{}
	// free has a token while no call runs.
	free chan struct{}

	mu sync.Mutex
	// limited is false if calls may take any time.
	limited bool
	// doing is the last call, and since the time it started.
	doing string
	since time.Time
	// troubleSince is the start of the first call that did not succeed in time, after the last one that did; zero if there was none.
	troubleSince time.Time
	// took are the durations of the last calls that succeeded.
	took []time.Duration
	// late is the result of a read that ended after its caller stopped waiting, and lateAt when that read began; nil if there is none or if it
	// is outdated. writes counts the writes: a read from before one is outdated.
	late   map[inet.Family]kernel.RulesView
	lateAt time.Time
	writes uint64
}

// newPatient starts the goroutine in the network namespace of the calling thread.
func newPatient(r rules) (*patient, error) {
	jobs, err := newThread()
	p := &patient{rules: r, jobs: jobs, ended: make(chan struct{}, 1), free: make(chan struct{}, 1)}
	p.free <- struct{}{}
	return p, err
}

func (p *patient) close() { close(p.jobs) }

// Read returns the rules, possibly from a read that ended late.
func (p *patient) Read(ctx context.Context) (map[inet.Family]kernel.RulesView, error) {
	p.mu.Lock()
	late, writes := p.late, p.writes
	if time.Since(p.lateAt) > maxLate {
		late = nil
	}
	p.late = nil
	p.mu.Unlock()
	if late != nil {
		return late, nil
	}
	began := time.Now()
	var found map[inet.Family]kernel.RulesView
	read := func() (err error) {
		found, err = p.rules.Read(ctx)
		return err
	}
	keep := func() {
		if p.writes == writes {
			p.late, p.lateAt = found, began
		}
	}
	if _, err := p.do(ctx, "reading the rules", read, keep); err != nil {
		return nil, err
	}
	return found, nil
}

// Apply executes the operations in order.
func (p *patient) Apply(ctx context.Context, ops []kernel.Op) []error {
	p.mu.Lock()
	p.late = nil // about to be outdated, and so is a read that still runs
	p.writes++
	p.mu.Unlock()
	var errs []error
	write := func() error {
		errs = p.rules.Apply(ctx, ops)
		if hung := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }); hung >= 0 {
			return errs[hung]
		}
		if errors.Join(errs...) != nil {
			return errOfOperations
		}
		return nil
	}
	known, err := p.do(ctx, "writing the rules", write, func() {})
	if known {
		return errs
	}
	unknown := make([]error, len(ops)) // the call may still write errs
	for i, op := range ops {
		unknown[i] = fmt.Errorf("%s: %w", op, err)
	}
	return unknown
}

// errOfOperations means that the results say what failed. That may be the rules' fault: it neither begins nor ends trouble.
var errOfOperations = errors.New("some operations failed")

// do runs a call. It returns a StuckError if the call fails, or has not ended in time. The call's results are known if it has ended; otherwise
// they must not be used. When such a call ends well, late is called with the lock held.
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
	case err := <-done: // it has just ended
		return true, p.ending(ctx, what, err)
	default:
	}
	abandoned = true
	if err := ctx.Err(); err != nil {
		return false, err
	}
	p.trouble(start)
	return false, kernel.StuckError{Part: kernel.PartIPTables, Doing: what, Since: p.troubleSince}
}

// acquire waits until no other call runs. It gives up when the running one has taken too long.
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

// patience returns what fires when a call that begins now has taken too long.
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

// limit is how long a call may take: the wait for the lock and several times what the slowest of the last calls took.
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

// note records how a call ended. Only a success ends the trouble: a hung program that is killed has not answered.
func (p *patient) note(start time.Time, err error) {
	if errors.Is(err, errOfOperations) {
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

// stuck is the error of a call that another one has kept from starting.
func (p *patient) stuck(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	p.trouble(p.since)
	return kernel.StuckError{Part: kernel.PartIPTables, Doing: p.doing, Since: p.troubleSince}
}

// ending is the error of a call that has ended.
func (p *patient) ending(ctx context.Context, what string, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errOfOperations) {
		return err
	}
	return kernel.StuckError{Part: kernel.PartIPTables, Doing: what, Since: p.troubleSince, Cause: err}
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
