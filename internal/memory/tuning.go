package memory

import "time"

const (
	// minPercent is the growth of an idle agent's heap beyond its live size. Go's own default is 100.
	minPercent = 20
	// startPercent is the growth until the agent is ready. Until then, memory up to startLimit is never collected, because
	// nearly everything that a small cluster allocates in that time stays in use.
	startPercent = 100
	startLimit   = 32 << 20
	// maxPercent limits how much memory the agent may use to collect less often.
	maxPercent = 800
	// maxCost and lowCost are fractions of one CPU. If collections cost more than maxCost, the heap may grow further; if they
	// cost less than lowCost, it shrinks again.
	maxCost, lowCost = 0.01, 0.0025
	// slack is additional memory in bytes. Without it, an agent with few Services would collect too often.
	slack = 4 << 20
	// fragments is the inverse of the fraction of the live heap that free space between objects may occupy.
	fragments = 16
)

// tuning limits the growth of the heap beyond its live size.
type tuning struct {
	// percent is the growth between two collections, like GOGC.
	percent int
	// limit applies to all memory of the runtime, in bytes, like GOMEMLIMIT.
	limit int64
}

// starting returns the tuning after a collection before the agent is ready.
func starting(live, fixed uint64) tuning {
	t := tuned(startPercent, live, fixed)
	t.limit = max(t.limit, startLimit)
	return t
}

// next returns the tuning after a collection. live is the size of the heap that it left, and fixed the size of the
// runtime's other memory, in bytes. cost is the CPU time of collections during the time elapsed since the previous call.
func (t tuning) next(live, fixed uint64, cost, elapsed time.Duration) tuning {
	percent := max(t.percent, minPercent)
	switch fraction := float64(cost) / float64(max(elapsed, 1)); {
	case fraction > maxCost:
		percent = min(2*percent, maxPercent)
	case fraction < lowCost:
		percent = max(percent/2, minPercent)
	}
	return tuned(percent, live, fixed)
}

func tuned(percent int, live, fixed uint64) tuning {
	return tuning{percent, int64(live) + int64(live)*int64(percent)/100 + int64(live)/fragments + int64(fixed) + slack}
}
