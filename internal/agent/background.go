package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// background is work outside the loop: walks through connection tracking, audits, quick checks, writes of rules, and the removal of old ones;
// and the queries that ask the loop to run something.
type background struct {
	// ended are functions that hand results to the loop.
	ended chan func()
	// requests are functions that queries ask the loop to run.
	requests chan func()
	wg       sync.WaitGroup
}

// tooLong is how long work may take on a busy node.
const tooLong = 5 * time.Minute

// kindsOfWork is how many results can wait at a time: one per job, and one per family for a write of rules. So no work ever waits for the loop.
const kindsOfWork = 6

func newBackground() *background {
	return &background{ended: make(chan func(), kindsOfWork), requests: make(chan func())}
}

// start runs work. It returns the function that hands its result to the loop; nil for no result.
func (b *background) start(work func() (take func())) {
	b.wg.Go(func() {
		if take := work(); take != nil {
			b.ended <- take
		}
	})
}

// ask makes the loop run a function between two syncs, and waits until it returns.
func (b *background) ask(ctx context.Context, take func()) error {
	done := make(chan struct{})
	select {
	case b.requests <- func() { take(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the loop is busy with a sync, or has ended: %w", ctx.Err())
	}
}

// answer runs the functions that wait for the loop. It is for syncs that take long.
func (b *background) answer() {
	for {
		select {
		case take := <-b.requests:
			take()
		default:
			return
		}
	}
}

// job is work that runs outside the loop, one run at a time. T is its result.
type job[T any] struct {
	// since is when the running work began; zero if none runs.
	since time.Time
	// failed counts consecutive failures; err is the latest.
	failed int
	err    error
}

// start begins the work. The loop gets its result when it ends.
func (j *job[T]) start(b *background, work func() (T, error), take func(T, error)) {
	j.since = time.Now()
	b.start(func() func() {
		result, err := work()
		return func() {
			j.since, j.err = time.Time{}, err
			if j.failed++; err == nil {
				j.failed = 0
			}
			take(result, err)
		}
	})
}

func (j *job[T]) running() bool { return !j.since.IsZero() }

// hangs reports whether the work has been running for too long.
func (j *job[T]) hangs() bool { return j.running() && time.Since(j.since) > tooLong }

// manyFailures is how many consecutive failures of a job must occur to be a Problem.
const manyFailures = 3

// trouble is the Problem of a job that fails or does not end.
type trouble struct {
	what string
	// effect is what does not work meanwhile; remedy is how to fix a failure.
	effect, remedy string
}

// problems returns the trouble of a job as a Problem of the node, if there is any.
func (j *job[T]) problems(node string, t trouble) []model.Problem {
	p := model.Problem{Object: model.NodeRef(node), Field: t.what, Reason: fmt.Sprintf("failing (%v); %s", j.err, t.effect), Remedy: t.remedy}
	switch {
	case j.hangs():
		p.Reason = fmt.Sprintf("the last one has not ended for %s; %s", time.Since(j.since).Round(time.Minute), t.effect)
		p.Remedy = "look for a hung call in the kernel's log, and restart the agent"
	case j.failed < manyFailures:
		return nil
	}
	return []model.Problem{p}
}
