package memory

import "time"

const (
	// minPercent is the growth of an idle agent's heap between two collections, in percent of its live size. Collections take most of an idle
	// agent's CPU time in large clusters, but memory is also scarce.
	minPercent = 20
	// maxPercent limits how much memory the agent may use to collect less often.
	maxPercent = 800
	// maxCost and lowCost are fractions of one CPU. If collections cost more than maxCost, the heap may grow further; if they
	// cost less than lowCost, it shrinks again.
	maxCost, lowCost = 0.005, 0.00125
	// spare is added to the growth, so that small heaps are not collected often. It is in bytes.
	spare = 8 << 20
	// goPercent is GOGC's default. It applies if GOMEMLIMIT is set.
	goPercent = 100
)

// tuning limits the growth of the heap beyond its live size.
type tuning struct {
	// percent is the growth between two collections, like GOGC.
	percent int
	// limit applies to all memory of the runtime, in bytes, like GOMEMLIMIT.
	limit int64
}

// next returns the tuning after a collection that left used. cost is the CPU time of collections during the time elapsed since the previous
// call.
func (t tuning) next(used size, cost, elapsed time.Duration) tuning {
	percent := max(t.percent, minPercent)
	switch fraction := float64(cost) / float64(max(elapsed, 1)); {
	case fraction > maxCost:
		percent = min(2*percent, maxPercent)
	case fraction < lowCost:
		percent = max(percent/2, minPercent)
	}
	return tuning{percent, int64(used.live) + int64(used.live)*int64(percent)/100 + int64(used.other) + spare}
}
