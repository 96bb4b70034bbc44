package slowstart

import (
	"container/heap"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type rising struct {
	key   kernel.ServerKey
	ramp  Ramp
	step  time.Duration
	next  time.Time
	index int // in the queue; -1 if no step is left
}

// stepAfter returns the time of the next step, or zero if all slow starts have passed. A destination whose last write failed can still be below
// its weight, but not for this package to retry.
func (s *rising) stepAfter(now time.Time) (next time.Time) {
	for _, began := range s.ramp {
		passed := now.Sub(began) / s.step
		if passed >= compile.SlowStartSteps {
			continue
		}
		if at := began.Add((passed + 1) * s.step); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

type queue []*rising

// schedule sets the time of a virtual server's next step. Zero removes it from the queue.
func (q *queue) schedule(s *rising, next time.Time) {
	s.next = next
	switch queued := s.index >= 0; {
	case next.IsZero() && queued:
		heap.Remove(q, s.index)
	case next.IsZero(): // it stays out
	case queued:
		heap.Fix(q, s.index)
	default:
		heap.Push(q, s)
	}
}

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	s := x.(*rising)
	s.index = len(*q)
	*q = append(*q, s)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	s.index = -1
	*q = slices.Delete(*q, last, last+1)
	return s
}
