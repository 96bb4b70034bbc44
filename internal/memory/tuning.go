package memory

import "time"

const (
	// minPercent is Go's own default: the heap may grow to twice its live size.
	minPercent = 100
	// maxPercent limits how much memory the agent may use to collect less often.
	maxPercent = 800
	// maxCost and lowCost are fractions of one CPU. If collections cost more than maxCost, the heap may grow further; if they
	// cost less than lowCost, it shrinks again.
	maxCost, lowCost = 0.01, 0.0025
	// overhead is the memory in bytes that the runtime needs in addition to the heap: stacks, tables, free space
	// between objects.
	overhead = 8 << 20
)

// tuning limits the growth of the heap beyond its live size.
type tuning struct {
	// percent is the growth between two collections, like GOGC.
	percent int
	// limit applies to all memory of the runtime, in bytes, like GOMEMLIMIT.
	limit int64
}

// next returns the tuning after a collection. live is the size of the heap that it left, in bytes. cost is the CPU
// time of collections during the time elapsed since the previous call.
func (t tuning) next(live uint64, cost, elapsed time.Duration) tuning {
	percent := max(t.percent, minPercent)
	switch fraction := float64(cost) / float64(max(elapsed, 1)); {
	case fraction > maxCost:
		percent = min(2*percent, maxPercent)
	case fraction < lowCost:
		percent = max(percent/2, minPercent)
	}
	return tuning{percent, int64(live) + int64(live)*int64(percent)/100 + overhead}
}
