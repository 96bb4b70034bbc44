package agent

import (
	"sync"
	"time"
)

// background is work outside the loop: walks through connection tracking, audits, quick checks, writes of rules, and the removal of old ones.
// At most one of each kind runs at a time, and one write of rules for each family.
type background struct {
	// ended are functions with which the loop takes the results.
	ended chan func()
	wg    sync.WaitGroup
}

// tooLong is how long work may take on a busy node.
const tooLong = 5 * time.Minute

// kindsOfWork is how many results can wait at a time. No work waits for the loop to end.
const kindsOfWork = 6

func newBackground() *background { return &background{ended: make(chan func(), kindsOfWork)} }

// start does work that returns how the loop takes its result; nil for no result.
func (b *background) start(work func() (take func())) {
	b.wg.Go(func() {
		if take := work(); take != nil {
			b.ended <- take
		}
	})
}
