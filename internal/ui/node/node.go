package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/ui"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Sources read the state of this node. If no agent responds, View returns the reason as silence.
type Sources struct {
	// View returns one Service, or all Services and the history if service is empty.
	View func(ctx context.Context, service string) (v *view.View, silence string, err error)
	// Services joins a view with the kernel's virtual servers.
	Services func(context.Context, *view.View) (inspect.ServiceList, error)
	Counts   func(context.Context) (inspect.Counts, error)
	// Explain traces packets like the explain command.
	Explain func(ctx context.Context, to, from string) ([]explain.Explanation, error)
	Doctor  func(context.Context) (doctor.Report, error)
}

const (
	// The counters are read every few seconds while the page is in use, and every minute otherwise.
	watchedInterval = 5 * time.Second
	idleInterval    = time.Minute
	// watchedFor is how long the page counts as in use after a request.
	watchedFor = 30 * time.Second
	// Reading the counters may take at most 1/effort of the time.
	effort = 20
	// keepView is how long a view of all Services is reused, because the agent's response may be large.
	keepView = 10 * time.Second
)

// Node implements ui.Node.
type Node struct {
	src Sources
	now func() time.Time

	asked chan struct{} // a request wakes the reader

	mu      sync.Mutex
	started time.Time
	watched time.Time // the time of the last request
	before  inspect.Counts
	latest  inspect.Counts
	at      time.Time
	seconds float64 // between the readings
	hour    *hour
	unread  string // why the counters could not be read

	viewing sync.Mutex // held while all Services are read
	all     *whole
}

// whole is the state of all Services at one point in time.
type whole struct {
	view     *view.View
	silence  string
	services inspect.ServiceList
	at       time.Time
	took     time.Duration
}

// New returns a Node that reads no counters until Run is called.
func New(src Sources) *Node {
	return &Node{src: src, now: time.Now, asked: make(chan struct{}, 1), started: time.Now(), hour: newHour()}
}

// Run reads the counters until ctx ends.
func (n *Node) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := n.now()
		counts, err := n.src.Counts(ctx)
		n.take(counts, err)
		took := n.now().Sub(began)
		n.pause(ctx, took*effort)
	}
}

// pause waits until the next reading is due. It waits at least the given time.
func (n *Node) pause(ctx context.Context, least time.Duration) {
	idle := time.NewTimer(max(idleInterval, least))
	defer idle.Stop()
	n.mu.Lock()
	watched := n.now().Sub(n.watched) < watchedFor
	n.mu.Unlock()
	if !watched {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			return
		case <-n.asked:
		}
	}
	soon := time.NewTimer(max(watchedInterval, least))
	defer soon.Stop()
	select {
	case <-ctx.Done():
	case <-soon.C:
	}
}

// take processes a reading.
func (n *Node) take(counts inspect.Counts, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unread = ""; err != nil {
		n.unread = err.Error()
		return
	}
	at := n.now()
	if n.latest != nil {
		n.hour.add(at, n.latest, counts)
		n.seconds = at.Sub(n.at).Seconds()
	}
	n.before, n.latest, n.at = n.latest, counts, at
}

// Answer implements ui.Node.
func (n *Node) Answer(ctx context.Context, q ui.Question) (json.RawMessage, error) {
	n.mu.Lock()
	n.watched = n.now()
	n.mu.Unlock()
	select {
	case n.asked <- struct{}{}:
	default:
	}
	document, err := n.document(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(document)
}

func (n *Node) document(ctx context.Context, q ui.Question) (any, error) {
	switch q.Ask {
	case "overview":
		return n.overview(ctx, q)
	case "service":
		return n.service(ctx, q.Service)
	case "changes":
		return n.changes(ctx, q.Service)
	case "explain":
		return n.src.Explain(ctx, q.To, q.From)
	case "doctor":
		return n.src.Doctor(ctx)
	}
	return nil, fmt.Errorf("unknown request %q; use overview, service, changes, explain or doctor", q.Ask)
}

// everything returns all Services. It reuses the last result for a while, and longer if the agent is slow to respond.
func (n *Node) everything(ctx context.Context) (*whole, error) {
	n.viewing.Lock()
	defer n.viewing.Unlock()
	if n.all != nil && n.now().Sub(n.all.at) < max(keepView, n.all.took*effort) {
		return n.all, nil
	}
	began := n.now()
	v, silence, err := n.src.View(ctx, "")
	if err != nil {
		return nil, err
	}
	all := &whole{view: v, silence: silence}
	if all.services, err = n.src.Services(ctx, v); err != nil {
		return nil, err
	}
	all.at = n.now()
	all.took = all.at.Sub(began)
	n.all = all
	return all, nil
}

// changes returns the agent's history.
func (n *Node) changes(ctx context.Context, service string) (any, error) {
	all, err := n.everything(ctx)
	switch {
	case err != nil:
		return nil, err
	case all.view == nil:
		return nil, fmt.Errorf("cannot show the history without the agent: %s", all.silence)
	case all.view.History == nil:
		return nil, errors.New("the agent has no history: its version differs from this command's")
	}
	return inspect.HistoryOf(all.view, view.HistoryFilter{Service: service, Limit: maxChanges}.Select(all.view.History.Entries)), nil
}
