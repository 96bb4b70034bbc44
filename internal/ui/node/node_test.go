package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/ui"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// world is a node with Services s0, s1, ... with two endpoints each. Between two readings, Service i receives i connections, all but one of
// them on endpoint 1.
type world struct {
	services, views int
	readings        atomic.Int64
	slow            atomic.Int64 // how long a reading takes
	silence, unread string
}

func (w *world) view() *view.View {
	v := &view.View{Agent: view.Agent{Synced: true}, Node: view.Node{Name: "node-1"}, History: &view.History{}, Problems: []string{"Service shop/s1: refused"}}
	weights := []uint32{1, 3}
	for i := range w.services {
		s := view.Service{Namespace: "shop", Name: fmt.Sprint("s", i), Problems: []string{}, Frontends: []view.Frontend{
			{Kind: view.ClusterIP, Address: key(i).Addr, Protocol: "tcp", State: view.Served},
			{Kind: view.ExternalIP, Address: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: "tcp", State: view.Conflict, Reason: "taken"},
		}}
		for e := range 2 {
			s.Frontends[0].Endpoints = append(s.Frontends[0].Endpoints, view.Endpoint{Address: endpoint(e), State: view.Ready, Weight: &weights[e]})
		}
		if i%2 == 0 {
			s.Frontends = s.Frontends[:1]
		}
		v.Services = append(v.Services, s)
	}
	return v
}

func (w *world) node() *Node {
	return New(Sources{
		View: func(_ context.Context, service string) (*view.View, string, error) {
			w.views++
			if w.silence != "" {
				return nil, w.silence, nil
			}
			v := w.view()
			v.Services = slices.DeleteFunc(v.Services, func(s view.Service) bool { return service != "" && s.ID() != service })
			return v, "", nil
		},
		Services: func(_ context.Context, v *view.View) (inspect.ServiceList, error) {
			if v == nil {
				return inspect.ServiceList{Items: []view.Service{}}, nil
			}
			return inspect.ServiceList{Items: v.Services}, nil
		},
		Counts: func(context.Context) (inspect.Counts, error) {
			if w.unread != "" {
				return nil, errors.New(w.unread)
			}
			time.Sleep(time.Duration(w.slow.Load()))
			now := w.readings.Add(1)
			counts := inspect.Counts{ // another Service's
				{Addr: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: inet.TCP}: {Counters: kernel.Counters{Connections: 1000 * uint64(now)}},
			}
			for i := range w.services {
				n := uint64(int(now) * i)
				one := min(n, uint64(now))
				counts[key(i)] = kernel.Traffic{Counters: kernel.Counters{Connections: n, OutBytes: 100 * n}, Endpoints: map[netip.AddrPort]kernel.TableDestination{
					endpoint(0): {Stats: kernel.Counters{Connections: one}}, endpoint(1): {Stats: kernel.Counters{Connections: n - one}},
				}}
			}
			return counts, nil
		},
		Explain: func(_ context.Context, to, from string) ([]explain.Explanation, error) {
			return []explain.Explanation{{Service: to, From: from}}, nil
		},
		Doctor: func(context.Context) (doctor.Report, error) { return doctor.Report{Verdict: "well"}, nil },
	})
}

func ask[T any](t *testing.T, n *Node, q ui.Question) (out T) {
	t.Helper()
	text, err := n.Answer(t.Context(), q)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	return out
}

func names(rows []Row) string {
	var all []string
	for _, r := range rows {
		all = append(all, strings.TrimPrefix(r.Service, "shop/"))
	}
	return strings.Join(all, " ")
}

// TestOverview: rows are filtered by words, sorted and limited.
func TestOverview(t *testing.T) {
	w := &world{services: 12}
	n := w.node()
	n.now = func() time.Time { return time.Unix(6000, 0).Add(time.Duration(w.readings.Load()) * 10 * time.Second) }
	for range 3 {
		n.take(n.src.Counts(t.Context()))
	}
	for q, want := range map[ui.Question]string{
		{Limit: "3"}:                     "s11 s10 s9",
		{Filter: "EXTERNAL s1"}:          "s11 s1",
		{Filter: "10.96.0.3:80"}:         "s3",
		{Filter: "nothing"}:              "",
		{Sort: "name", Limit: "2"}:       "s0 s1",
		{Sort: "state", Limit: "2"}:      "s1 s11",
		{Sort: "out", Limit: "1"}:        "s11",
		{Sort: "active", Limit: "1"}:     "s0",
		{Sort: "in", Filter: "conflict"}: "s1 s11 s3 s5 s7 s9",
	} {
		q.Ask = "overview"
		o := ask[Overview](t, n, q)
		if got := names(o.Services.Items); got != want || o.Services.Count != 12 || o.Verdict != "well" {
			t.Errorf("%+v: got %q of %d Services and verdict %s, want %q", q, got, o.Services.Count, o.Verdict, want)
		}
	}
	for _, q := range []ui.Question{{Ask: "overview", Limit: "0"}, {Ask: "overview", Limit: "x"}, {Ask: "overview", Sort: "age"}, {Ask: "logs"}, {Ask: "service"}} {
		if _, err := n.Answer(t.Context(), q); err == nil {
			t.Errorf("%+v got an answer instead of an error", q)
		}
	}
}

// TestTraffic: the overview shows the traffic between the latest two readings and in the last hour, for each Service and for the node.
func TestTraffic(t *testing.T) {
	w := &world{services: 12}
	n := w.node()
	n.now = func() time.Time { return time.Unix(6000, 0).Add(time.Duration(w.readings.Load()) * 10 * time.Second) }
	for range 3 {
		n.take(n.src.Counts(t.Context()))
	}
	o := ask[Overview](t, n, ui.Question{Ask: "overview"})
	s := o.Services.Items[0]
	if s.Traffic.Connections != 1.1 || s.BytesOut != 110 || s.Ready != 2 || s.Endpoints != 2 || len(s.Hour) != minutes || s.Hour[minutes-1].Connections != 22 {
		t.Errorf("s11: %+v", s)
	}
	if o.Measured.Now.Connections < 6.59 || o.Measured.Now.Connections > 6.61 || o.Measured.Hour[minutes-1].Connections != 132 {
		t.Errorf("the node: %+v", o.Measured)
	}
	if w.views > 2 {
		t.Errorf("the agent was queried for all Services %d times, want at most 2", w.views)
	}
}

// TestService: the answer contains each endpoint's share of the last hour's connections and its share of the weights.
func TestService(t *testing.T) {
	w := &world{services: 12}
	n := w.node()
	for range 3 {
		n.take(n.src.Counts(t.Context()))
	}
	d := ask[ServiceDocument](t, n, ui.Question{Ask: "service", Service: "shop/s4"})
	f := d.Frontends[0]
	var shares []float64
	for i, flow := range f.Flows {
		if flow.Address != f.Endpoints[i].Address {
			t.Errorf("flow %d leads to %s", i, flow.Address)
		}
		shares = append(shares, flow.Share, flow.WeightShare)
	}
	if fmt.Sprint(shares) != "[0.25 0.25 0.75 0.75]" || f.Flows[1].Total.Connections != 6 {
		t.Errorf("%v: %+v", shares, f.Flows)
	}
	if got := ask[[]explain.Explanation](t, n, ui.Question{Ask: "explain", To: "a", From: "b"}); got[0].Service != "a" || got[0].From != "b" {
		t.Error(got)
	}
	if got := ask[doctor.Report](t, n, ui.Question{Ask: "doctor"}); got.Verdict != "well" {
		t.Error(got)
	}
}

// TestSilence: if the agent does not respond or the counters cannot be read, the overview gives the reason, and its verdict is
// broken.
func TestSilence(t *testing.T) {
	w := &world{services: 2, silence: "no kube-ipvs agent responds", unread: "not permitted"}
	n := w.node()
	n.take(n.src.Counts(t.Context()))
	o := ask[Overview](t, n, ui.Question{Ask: "overview"})
	if o.Verdict != "broken" || o.Agent != nil || o.Measured.Error != "not permitted" || !strings.Contains(o.Findings[0].Problem, w.silence) {
		t.Errorf("%+v", o)
	}
	for _, question := range []string{"changes", "service"} {
		if _, err := n.Answer(t.Context(), ui.Question{Ask: question, Service: "shop/s1"}); err == nil || !strings.Contains(err.Error(), w.silence) {
			t.Errorf("%s: %v", question, err)
		}
	}
}

// TestReadsOftenWhileWatched: the counters are read every minute, and every five seconds while the page is in use. A slow reading delays
// the next one.
func TestReadsOftenWhileWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{services: 1}
		n := w.node()
		ctx, stop := context.WithCancel(t.Context())
		go n.Run(ctx)
		synctest.Wait() // for the first reading
		rest := func(d time.Duration) int {
			before := w.readings.Load()
			time.Sleep(d)
			synctest.Wait()
			return int(w.readings.Load() - before)
		}
		if got := rest(10*time.Minute + time.Second); got != 10 {
			t.Errorf("%d readings in 10 minutes, want 10", got)
		}
		got := 0
		for range 12 {
			ask[Overview](t, n, ui.Question{Ask: "overview"})
			got += rest(5 * time.Second)
		}
		if got < 11 || got > 13 {
			t.Errorf("%d readings in a minute while the page was in use, want 11 to 13", got)
		}
		w.slow.Store(int64(3 * time.Second))
		if got := rest(10 * time.Minute); got > 11 {
			t.Errorf("%d slow readings in 10 minutes, want at most 11", got)
		}
		stop()
	})
}

// TestStages: only incremental syncs count toward the latency of changes.
func TestStages(t *testing.T) {
	var entries []*view.PastSync
	for i := range 100 {
		entries = append(entries, &view.PastSync{Kind: view.SyncIncremental, Seconds: float64(i), Stages: view.StageSeconds{Waited: 1, Apply: float64(i)}})
	}
	entries = append(entries, &view.PastSync{Kind: view.SyncFull, Seconds: 1e6})
	if stages(nil) == nil || len(stages(entries[100:])) > 0 {
		t.Error("want an empty list of stages if no sync was caused by a change")
	}
	all := stages(entries)
	if got := fmt.Sprint(all[0], all[4], all[5]); got != "{waited 100 1 1 1} {apply 100 49 98 99} {total 100 50 99 100}" {
		t.Error(got)
	}
}
