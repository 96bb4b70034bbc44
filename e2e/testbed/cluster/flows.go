package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// FlowConfig configures flows. The zero value is usable.
type FlowConfig struct {
	Every  time.Duration // interval between a flow's requests; default 100 ms
	Within time.Duration // limit for an answer; default 3 s. Opening a flow may take 3 s or, if this is longer, as long
	Max    time.Duration // flows stop after this time; default 2 min
}

// Flows are long-lived connections that send at a steady rate, to detect the effects of a change or an agent
// restart.
type Flows struct {
	conns  []*Conn
	config FlowConfig
	host   *Host
	what   string

	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	mu     sync.Mutex
	round  *sync.Cond // an answer arrived, or a flow ended
	report FlowReport
	states []flowState
}

type flowState struct {
	started  uint64    // number of requests sent
	answered uint64    // number of the latest request that was answered
	last     time.Time // time of the last answer
	moved    bool      // another server has answered
	ended    bool
}

// FlowReport summarizes the results of flows.
type FlowReport struct {
	Flows    int
	Sent     int
	Answered int
	Late     int // answered after the limit; also counted in Answered
	Lost     int // not answered so far
	Broken   int // flows that were reset or closed
	Refused  int // requests refused (UDP flows continue)
	Moved    int // flows whose answers came from more than one server

	// LongestSilence is the longest time between two answers of a flow, or between its last answer and its end.
	LongestSilence time.Duration
	SilentFlow     string

	Servers map[string]int // number of flows by the server that answered first
	Errors  []string       // the first ten
}

func (r FlowReport) String() string {
	s := r.Summary()
	if len(r.Errors) > 0 {
		s += "\n  " + strings.Join(r.Errors, "\n  ")
	}
	return s
}

// Summary returns the report on one line, without the errors.
func (r FlowReport) Summary() string {
	return fmt.Sprintf("%d flows: %d sent, %d answered (%d late), %d lost, %d refused; %d flows broken, %d moved; longest silence %v (%s); servers %v",
		r.Flows, r.Sent, r.Answered, r.Late, r.Lost, r.Refused, r.Broken, r.Moved,
		r.LongestSilence.Round(time.Millisecond), r.SilentFlow, r.Servers)
}

// Unharmed reports whether each flow's first server answered every request in time.
func (r FlowReport) Unharmed() bool {
	return r.Lost == 0 && r.Late == 0 && r.Broken == 0 && r.Refused == 0 && r.Moved == 0
}

// OpenFlows opens n connections and keeps sending over them until Stop, the end of the test, or config.Max.
func (h *Host) OpenFlows(t T, n int, proto Protocol, addr string, config FlowConfig) *Flows {
	t.Helper()
	f, err := h.StartFlows(n, proto, addr, config)
	if err != nil {
		t.Fatalf("%s -> %s %s: open %d flows: %v", h.Name, addr, proto, n, err)
	}
	atEnd(t, f.abort)
	return f
}

// StartFlows is like OpenFlows, but returns an error instead of failing a test.
func (h *Host) StartFlows(n int, proto Protocol, addr string, config FlowConfig) (*Flows, error) {
	if config.Every <= 0 {
		config.Every = 100 * time.Millisecond
	}
	if config.Within <= 0 {
		config.Within = DefaultWithin
	}
	if config.Max <= 0 {
		config.Max = 2 * time.Minute
	}
	f := &Flows{config: config, host: h, stop: make(chan struct{}), states: make([]flowState, n),
		what:  fmt.Sprintf("%d flows %s -> %s %s", n, h.Name, addr, proto),
		conns: make([]*Conn, n), report: FlowReport{Flows: n, Servers: map[string]int{}}}
	f.round = sync.NewCond(&f.mu)
	// Open several at a time, so that delays do not add up.
	errs := make([]error, n)
	slots := make(chan struct{}, 16)
	var opening sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		opening.Go(func() {
			if f.conns[i], errs[i] = h.Dial(proto, addr, Within(max(config.Within, DefaultWithin))); errs[i] == nil {
				f.conns[i].within = config.Within
			}
			<-slots
		})
	}
	opening.Wait()
	err := errors.Join(errs...)
	if err == nil {
		err = h.own(f)
	}
	if err != nil {
		for _, c := range f.conns {
			if c != nil {
				c.abort()
			}
		}
		return nil, err
	}
	begin := time.Now()
	for i, c := range f.conns {
		f.report.Servers[c.Server]++
		f.states[i].last = begin
		f.wg.Go(func() { f.run(i, begin) })
	}
	return f, nil
}

func (f *Flows) run(i int, begin time.Time) {
	end := begin.Add(f.config.Max)
	next := begin.Add(f.config.Every * time.Duration(i) / time.Duration(len(f.conns)))
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	defer func() {
		f.mu.Lock()
		f.silence(i, time.Now())
		f.states[i].ended = true
		f.round.Broadcast()
		f.mu.Unlock()
	}()
	for {
		select {
		case <-f.stop:
			return
		case <-timer.C:
		}
		if time.Now().After(end) {
			return
		}
		if over := f.request(i); over {
			return
		}
		// Keep the rate, but do not send a burst to catch up.
		next = next.Add(f.config.Every)
		if now := time.Now(); next.Before(now) {
			next = now
		}
		timer.Reset(time.Until(next))
	}
}

// request sends one request and reports whether the flow is over.
func (f *Flows) request(i int) (over bool) {
	c := f.conns[i]
	f.mu.Lock()
	f.states[i].started++
	number := f.states[i].started
	f.mu.Unlock()
	before, lateBefore := c.answered, c.late
	reply, err := c.Ping()

	f.mu.Lock()
	defer f.mu.Unlock()
	f.report.Sent++
	f.report.Answered += int(c.answered - before)
	f.report.Late += int(c.late - lateBefore)
	if c.answered > before {
		f.silence(i, time.Now())
	}
	if err == nil {
		f.states[i].answered = number
		if reply.Server != c.Server && !f.states[i].moved {
			f.states[i].moved = true
			f.report.Moved++
			f.problem(c, "answered by "+reply.Server)
		}
		f.round.Broadcast()
		return false
	}
	if errors.Is(err, os.ErrClosed) { // Stop or Close closed it
		return true
	}
	f.problem(c, err.Error())
	o := outcomeOf(err)
	if o == Refused {
		f.report.Refused++
	}
	broken := o != Timeout && c.Proto != UDP
	if broken {
		f.report.Broken++
	}
	return broken
}

// The caller must hold the lock.
func (f *Flows) silence(i int, now time.Time) {
	if d := now.Sub(f.states[i].last); d > f.report.LongestSilence {
		f.report.LongestSilence, f.report.SilentFlow = d, f.conns[i].Local.String()
	}
	f.states[i].last = now
}

func (f *Flows) problem(c *Conn, what string) {
	if len(f.report.Errors) < 10 {
		f.report.Errors = append(f.report.Errors, fmt.Sprintf("%s (%s): %s", c.Local, c.Server, what))
	}
}

// Report returns the results so far, without pending requests.
func (f *Flows) Report() FlowReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.report
	r.Servers, r.Errors = maps.Clone(r.Servers), slices.Clone(r.Errors)
	r.Lost = max(0, r.Sent-r.Answered-r.Refused)
	return r
}

// AwaitRound waits until every flow gets an answer to a request sent after this call. By then, disruptions from
// earlier events are visible.
func (f *Flows) AwaitRound(t T, within time.Duration) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	want := make([]uint64, len(f.states))
	for i, s := range f.states {
		want[i] = s.started + 1
	}
	expired := false
	timer := time.AfterFunc(within, func() {
		f.mu.Lock()
		expired = true
		f.round.Broadcast()
		f.mu.Unlock()
	})
	defer timer.Stop()
	for {
		missing, ended := 0, 0
		for i, s := range f.states {
			if s.answered < want[i] {
				missing++
				if s.ended {
					ended++
				}
			}
		}
		if missing == 0 {
			return
		}
		if expired || ended > 0 {
			t.Fatalf("%s: after %v, %d flows have no new answer (%d have ended)\n  %s", f.what, within, missing, ended,
				strings.Join(f.report.Errors, "\n  "))
			return
		}
		f.round.Wait()
	}
}

// Stop waits for pending answers, stops the flows and returns their report.
func (f *Flows) Stop() FlowReport {
	f.once.Do(func() { close(f.stop) })
	f.wg.Wait()
	for _, c := range f.conns {
		c.Close()
	}
	f.host.disown(f)
	return f.Report()
}

// MustBeUnharmed stops the flows and fails the test unless they are Unharmed.
func (f *Flows) MustBeUnharmed(t T) FlowReport {
	t.Helper()
	r := f.Stop()
	if !r.Unharmed() {
		t.Errorf("%s: harmed: %s", f.what, r)
	}
	return r
}

func (f *Flows) abort() {
	for _, c := range f.conns {
		c.abort()
	}
	f.Stop()
}
