package services

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// requests is a client that opens one new connection after another in the background.
type requests struct {
	what string
	stop chan struct{}
	once sync.Once
	done sync.WaitGroup

	mu       sync.Mutex
	made     int
	servers  map[string]int
	failures []string
}

// keepRequesting makes requests until mustNeverFail, or the end of the test.
func keepRequesting(t *testing.T, from *cluster.Host, p port, addr string) *requests {
	t.Helper()
	a := &requests{what: fmt.Sprintf("%s -> %s %s", from.Name, addr, p.Protocol), stop: make(chan struct{}), servers: map[string]int{}}
	a.done.Go(func() { a.run(from, p, addr) })
	t.Cleanup(a.end)
	return a
}

func (a *requests) run(from *cluster.Host, p port, addr string) {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		a.record(request(from, p, addr))
		select {
		case <-a.stop:
			return
		case <-pause.C:
		}
	}
}

// datagrams counts those sent from ports below the range from which the kernel chooses.
var datagrams atomic.Uint32

// request makes one request. No two datagrams have the same source port, also not to different addresses: when IPVS chooses the
// source of a reply, it cannot distinguish two flows from one client port to one endpoint. See docs/known-limits.md.
func request(from *cluster.Host, p port, addr string) cluster.Result {
	if p.Protocol != cluster.UDP {
		return from.Probe(p.Protocol, addr, slowly)
	}
	const first, last = 10_000, 32_767
	port := first + datagrams.Add(1)%(last-first+1)
	return from.Probe(p.Protocol, addr, slowly, cluster.FromPort(uint16(port)))
}

func (a *requests) record(r cluster.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.made++
	if r.Outcome == cluster.Answered {
		a.servers[r.Reply.Server]++
	} else {
		a.failures = append(a.failures, r.String())
	}
}

func (a *requests) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.made
}

// awaitMore waits until n more requests have been answered or have failed.
func (a *requests) awaitMore(t *testing.T, n int) {
	t.Helper()
	enough := a.count() + n
	cluster.Eventually(t, patience, a.what+" makes more requests", func() error {
		if now := a.count(); now < enough {
			return fmt.Errorf("%d requests, want %d", now, enough)
		}
		return nil
	})
}

func (a *requests) end() {
	a.once.Do(func() { close(a.stop) })
	a.done.Wait()
}

// mustNeverFail stops the client. Every request must have been answered.
func (a *requests) mustNeverFail(t *testing.T) {
	t.Helper()
	a.end()
	t.Logf("%s: %d requests, answered by %v", a.what, a.made, a.servers)
	if len(a.failures) > 0 {
		t.Errorf("%s: %d of %d requests failed: %s", a.what, len(a.failures), a.made, a.failures[0])
	}
	if a.made < 5 {
		t.Errorf("%s: only %d requests, too few to prove anything", a.what, a.made)
	}
}
