package services

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// requests opens one new connection after another in the background.
type requests struct {
	what string
	try  func() cluster.Result
	stop chan struct{}
	once sync.Once
	done sync.WaitGroup

	mu       sync.Mutex
	made     int
	servers  map[string]int
	failures []string
}

// keepRequesting makes requests until mustNeverFail is called or the test ends.
func keepRequesting(t *testing.T, from *cluster.Host, p port, addr string) *requests {
	t.Helper()
	from.Await(t, patience, p.Protocol, addr)
	return keepGoing(t, from, p, addr, slowly)
}

// keepTrying makes requests until mustReachOnly is called or the test ends. It does not wait for late answers, so
// it also detects states that last only a moment.
func keepTrying(t *testing.T, from *cluster.Host, p port, addr string) *requests {
	t.Helper()
	return keepGoing(t, from, p, addr, cluster.Within(20*time.Millisecond))
}

func keepGoing(t *testing.T, from *cluster.Host, p port, addr string, within cluster.DialOption) *requests {
	t.Helper()
	return keepCalling(t, fmt.Sprintf("%s -> %s %s", from.Name, addr, p.Protocol), func() cluster.Result { return request(from, p, addr, within) })
}

func keepCalling(t *testing.T, what string, try func() cluster.Result) *requests {
	t.Helper()
	a := &requests{what: what, try: try, stop: make(chan struct{}), servers: map[string]int{}}
	a.done.Go(a.run)
	t.Cleanup(a.end)
	return a
}

func (a *requests) run() {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		a.record(a.try())
		select {
		case <-a.stop:
			return
		case <-pause.C:
		}
	}
}

// datagrams counts datagrams sent from ports below the kernel's ephemeral range.
var datagrams atomic.Uint32

// request gives each datagram a unique source port. IPVS cannot distinguish the replies of two flows from one
// client port to one endpoint. See docs/known-limits.md.
func request(from *cluster.Host, p port, addr string, within cluster.DialOption) cluster.Result {
	if p.Protocol != cluster.UDP {
		return from.Probe(p.Protocol, addr, within)
	}
	const first, last = 10_000, 32_767
	port := first + datagrams.Add(1)%(last-first+1)
	return from.Probe(p.Protocol, addr, within, cluster.FromPort(uint16(port)))
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

func hold(t *testing.T, all []*requests) {
	t.Helper()
	for _, a := range all {
		a.awaitMore(t, 2)
	}
}

func (a *requests) end() {
	a.once.Do(func() { close(a.stop) })
	a.done.Wait()
}

func (a *requests) mustNeverFail(t *testing.T) {
	t.Helper()
	a.end()
	t.Logf("%s: %d requests, answered by %v", a.what, a.made, a.servers)
	if len(a.failures) > 0 {
		t.Errorf("%s: %d of %d requests failed: %s", a.what, len(a.failures), a.made, a.failures[0])
	}
	if a.made < 5 {
		t.Errorf("%s: only %d requests, too few for this test", a.what, a.made)
	}
}

func (a *requests) mustReachOnly(t *testing.T, server string) {
	t.Helper()
	a.end()
	t.Logf("%s: %d requests, answered by %v", a.what, a.made, a.servers)
	for other, n := range a.servers {
		if other != server {
			t.Errorf("%s: %s answered %d of %d requests", a.what, other, n, a.made)
		}
	}
	if a.made < 5 {
		t.Errorf("%s: only %d requests, too few for this test", a.what, a.made)
	}
}
