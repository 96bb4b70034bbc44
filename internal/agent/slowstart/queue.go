package slowstart

import (
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type rising struct {
	key   kernel.ServerKey
	ramp  Ramp
	step  time.Duration
	next  time.Time
	index int
}

func (s *rising) stepAfter(now time.Time) (next time.Time) {
	for _, began := range s.ramp {
		if at := began.Add((now.Sub(began)/s.step + 1) * s.step); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

type queue []*rising

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
	*q = slices.Delete(*q, last, last+1)
	return s
}
