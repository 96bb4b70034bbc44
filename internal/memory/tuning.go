package memory

import "time"

const (
	// minPercent is Go's own default: the heap may grow to twice what lives.
	minPercent = 100
	// maxPercent bounds what is spent to collect less often.
	maxPercent = 800
	// maxCost and lowCost are fractions of one CPU. If collecting costs more, the heap may grow further; if it costs less, it shrinks again.
	maxCost, lowCost = 0.01, 0.0025
	// overhead is what the runtime needs besides the heap, in bytes: stacks, its own tables, free space between objects.
	overhead = 8 << 20
)

// tuning is how much the heap may grow beyond what lives.
type tuning struct {
	// percent is the growth between two collections, as GOGC has it.
	percent int
	// limit is for all memory of the runtime, in bytes, as GOMEMLIMIT has it.
	limit int64
}

// next is the tuning after a collection: live bytes are left, and collecting has cost this much CPU time since the collection before,
// which was elapsed ago.
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
