package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// background runs work outside the loop. It also passes requests for views to the loop.
type background struct {
	ended    chan func()
	requests chan func()
	wg       sync.WaitGroup
}

const tooLong = 5 * time.Minute

// kindsOfWork is the maximum number of results that wait for the loop: one per job, and one per family for rule writes.
const kindsOfWork = 6

func newBackground() *background {
	return &background{ended: make(chan func(), kindsOfWork), requests: make(chan func())}
}

// start runs work outside the loop, and then runs the returned function in the loop.
func (b *background) start(work func() (take func())) {
	b.wg.Go(func() {
		if take := work(); take != nil {
			b.ended <- take
		}
	})
}

// ask runs a function in the loop and waits until it returns.
func (b *background) ask(ctx context.Context, take func()) error {
	done := make(chan struct{})
	select {
	case b.requests <- func() { take(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the loop is busy with a sync, or has stopped: %w", ctx.Err())
	}
}

// answer runs the functions that wait for the loop.
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

// job is one kind of work outside the loop. At most one run is active at a time.
type job[T any] struct {
	since  time.Time
	failed int
	err    error
}

// start begins the work. When the work ends, the loop calls take.
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

func (j *job[T]) hangs() bool { return j.running() && time.Since(j.since) > tooLong }

// manyFailures is the number of consecutive failures after which a job is a Problem.
const manyFailures = 3

type trouble struct {
	what           string
	effect, remedy string
}

// problems returns a Problem of the node if the job hangs or keeps failing.
func (j *job[T]) problems(node string, t trouble) []model.Problem {
	p := model.Problem{Object: model.NodeRef(node), Field: t.what, Reason: fmt.Sprintf("failing (%v); %s", j.err, t.effect), Remedy: t.remedy}
	switch {
	case j.hangs():
		// A text that changes with time would be a new Problem each time.
		p.Reason = fmt.Sprintf("the latest run began at %s and has not ended; %s", j.since.UTC().Format(time.RFC3339), t.effect)
		p.Remedy = "check the kernel's log for a hung call, and restart the agent"
	case j.failed < manyFailures:
		return nil
	}
	return []model.Problem{p}
}
