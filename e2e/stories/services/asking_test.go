package services

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// asking is a client that makes one new connection after the other in the background.
type asking struct {
	what string
	stop chan struct{}
	once sync.Once
	done sync.WaitGroup

	mu       sync.Mutex
	asked    int
	servers  map[string]int
	failures []string
}

// keepAsking asks until mustNeverFail, or the end of the test.
func keepAsking(t *testing.T, from *cluster.Host, p port, addr string) *asking {
	t.Helper()
	a := &asking{what: fmt.Sprintf("%s -> %s %s", from.Name, addr, p.protocol), stop: make(chan struct{}), servers: map[string]int{}}
	a.done.Go(func() { a.run(from, p, addr) })
	t.Cleanup(a.end)
	return a
}

func (a *asking) run(from *cluster.Host, p port, addr string) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		a.note(ask(from, p, addr))
		select {
		case <-a.stop:
			return
		case <-pause.C:
		}
	}
}

// datagrams counts those that were sent from ports below the ones that the kernel chooses.
var datagrams atomic.Uint32

// ask makes one request. No two datagrams come from one port, whatever address they go to: IPVS takes flows of one client port to
// one endpoint for the same when it looks for the address that an answer must come from. See docs/known-limits.md.
func ask(from *cluster.Host, p port, addr string) cluster.Result {
	if p.protocol != cluster.UDP {
		return from.Probe(p.protocol, addr, slowly)
	}
	const first, last = 10_000, 32_767
	port := first + datagrams.Add(1)%(last-first+1)
	return from.Probe(p.protocol, addr, slowly, cluster.FromPort(uint16(port)))
}

func (a *asking) note(r cluster.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if r.Outcome == cluster.Answered {
		a.servers[r.Reply.Server]++
	} else {
		a.failures = append(a.failures, r.String())
	}
}

func (a *asking) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

// awaitMore waits until some more requests have got their answer, or none.
func (a *asking) awaitMore(t *testing.T, n int) {
	t.Helper()
	enough := a.count() + n
	cluster.Eventually(t, patience, a.what+" goes on", func() error {
		if now := a.count(); now < enough {
			return fmt.Errorf("%d requests, want %d", now, enough)
		}
		return nil
	})
}

func (a *asking) end() {
	a.once.Do(func() { close(a.stop) })
	a.done.Wait()
}

// mustNeverFail ends the asking and wants every request answered.
func (a *asking) mustNeverFail(t *testing.T) {
	t.Helper()
	a.end()
	t.Logf("%s: %d requests, answered by %v", a.what, a.asked, a.servers)
	if len(a.failures) > 0 {
		t.Errorf("%s: %d of %d requests failed: %s", a.what, len(a.failures), a.asked, a.failures[0])
	}
	if a.asked < 5 {
		t.Errorf("%s: only %d requests, which shows nothing", a.what, a.asked)
	}
}
