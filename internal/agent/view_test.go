package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func (w *world) view(q agent.Query) *view.View {
	w.Helper()
	v, err := w.agent.View(w.Context(), q)
	if err != nil {
		w.Fatal(err)
	}
	return v
}

func onlyFrontend(t *testing.T, v *view.View) view.Frontend {
	t.Helper()
	if len(v.Services) != 1 || len(v.Services[0].Frontends) != 1 {
		t.Fatalf("got services %+v, want one with one frontend", v.Services)
	}
	return v.Services[0].Frontends[0]
}

var everything = agent.Query{All: true}

func TestViewOfEndpoints(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		web := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
		w.put(web)
		w.fake.SetConnections(tcp("10.96.0.1:80"), netip.MustParseAddrPort("10.244.0.2:8080"), 3, 0)
		unready := model.Endpoint{Addr: netip.MustParseAddr("10.244.0.3"), Node: "node-b", Zone: "zone-1", Pod: "default/web-3"}
		w.put(only(web, web.Slices[0].Endpoints[0], unready))

		front := onlyFrontend(t, w.view(everything))
		states := map[string]view.EndpointState{}
		for _, e := range front.Endpoints {
			states[e.Address.Addr().String()] = e.State
		}
		if d := cmp.Diff(map[string]view.EndpointState{
			"10.244.0.1": view.Ready, "10.244.0.2": view.Draining, "10.244.0.3": view.NotReady,
		}, states); d != "" {
			t.Error(d)
		}
		if e := front.Endpoints[2]; e.Pod != "default/web-3" || e.Node != "node-b" || e.Zone != "zone-1" || e.Weight != nil {
			t.Errorf("the unready endpoint is %+v", e)
		}
		if e := front.Endpoints[1]; e.Since == nil || *e.Weight != 0 || e.Wanted != nil {
			t.Errorf("the draining endpoint is %+v", e)
		}
		if front.State != view.Served || front.Server != "-t 10.96.0.1:80 -s rr" || !front.Bound {
			t.Errorf("front %+v", front)
		}
	})
}

func TestViewSelectsServices(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		web, dns := compiletest.Service("web", "10.96.0.1"), compiletest.Service("dns", "10.96.0.2")
		late := compiletest.Service("late", "10.96.0.1")
		late.Created = late.Created.Add(time.Hour)
		w.put(web, dns, late)
		for _, c := range []struct {
			query agent.Query
			want  []string
		}{
			{agent.Query{}, nil},
			{everything, []string{"default/dns", "default/late", "default/web"}},
			{agent.Query{Service: dns.ID}, []string{"default/dns"}},
			{agent.Query{Address: netip.MustParseAddr("10.96.0.1")}, []string{"default/late", "default/web"}},
			{agent.Query{Address: netip.MustParseAddr("10.96.0.9")}, nil},
		} {
			v := w.view(c.query)
			var got []string
			for _, s := range v.Services {
				got = append(got, s.ID())
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("%+v: %s", c.query, d)
			}
			if v.Totals.Services != 3 || v.Totals.VirtualServers != 2 || len(v.Problems) != 1 {
				t.Errorf("%+v: got totals %+v and problems %v", c.query, v.Totals, v.Problems)
			}
		}
		claimed := onlyFrontend(t, w.view(agent.Query{Service: late.ID}))
		if claimed.State != view.Conflict || !strings.Contains(claimed.Reason, "default/web") || claimed.Server != "" {
			t.Errorf("got frontend %+v, want it claimed by default/web", claimed)
		}
	})
}

// A sample contains the Services that every pod needs and a few Services of each other kind, but no large ones.
func TestViewSamplesServices(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		api, dns, large := compiletest.Service("kubernetes", "10.96.0.1", "10.244.0.1"), compiletest.Service("dns", "10.96.0.10"), compiletest.Service("large", "10.96.0.11")
		dns.ID.Namespace, dns.Ports[0].Port, dns.Ports[0].Protocol = "kube-system", 53, inet.UDP
		all := []*model.Service{api, dns, large}
		for port := range 40 {
			large.Ports = append(large.Ports, model.ServicePort{Name: fmt.Sprint(port), Protocol: inet.TCP, Port: uint16(1000 + port)})
		}
		for i := range 20 {
			svc := compiletest.Service(fmt.Sprint("web-", i), fmt.Sprintf("10.96.1.%d", i+1), "10.244.0.1")
			if i == 2 {
				svc = compiletest.Service("six", "fd00:10:96::6", "fd00:10:244::1")
			}
			if i < 2 {
				svc.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
			}
			all = append(all, svc)
		}
		w.put(all...)
		for range 10 {
			kinds, names := map[view.Kind]int{}, map[string]bool{}
			for _, s := range w.view(agent.Query{Sample: true}).Services {
				names[s.ID()] = true
				for _, f := range s.Frontends {
					kinds[f.Kind]++
				}
			}
			if !names["default/kubernetes"] || !names["kube-system/dns"] || names["default/large"] || !names["default/six"] || kinds[view.ExternalIP] != 2 ||
				len(names) > 9 {
				t.Fatalf("sampled Services %v with kinds %v", names, kinds)
			}
		}
	})
}

func TestViewOfFailures(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		w.put(compiletest.Service("web", "10.96.0.1", "10.244.0.1"))
		w.damage(foreign(tcp("10.96.0.2:80")))
		w.damage(func(f *kerneltest.Fake) error { return f.DelServer(tcp("10.96.0.1:80")) })
		w.audit()
		w.put(compiletest.Service("taken", "10.96.0.2", "10.244.0.1"))
		v := w.view(everything)
		wanted := view.Drift{
			Part: "servers", Kind: "missing", Count: v.Agent.Drift, Audits: 1, First: *v.Agent.LastDrift, Last: *v.Agent.LastDrift,
			What: []string{"virtual server 10.96.0.1:80/TCP is missing"},
		}
		if d := cmp.Diff([]view.Drift{wanted}, v.Agent.Drifts); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]view.Foreign{{Server: "-t 10.96.0.2:80", Service: "default/taken:http"}}, v.Agent.Foreign); d != "" {
			t.Error(d)
		}
		if f := v.Services[0].Frontends[0]; f.State != view.ForeignServer {
			t.Errorf("the frontend is %s", f.State)
		}
		if v.Agent.LastSync == nil || v.Agent.LastFullSync == nil || v.Agent.Error != "" {
			t.Errorf("agent %+v", v.Agent)
		}
		w.faults = kerneltest.Faults{Probability: 1}
		w.fake.SetFaults(w.faults)
		w.put(compiletest.Service("more", "10.96.0.3", "10.244.0.1"))
		if v := w.view(everything); v.Agent.Error == "" || v.Agent.RetryAt == nil {
			t.Errorf("got %+v after a failed sync", v.Agent)
		}
		w.calm()
		w.audit()
		if v := w.view(everything); v.Agent.Error != "" || v.Agent.RetryAt != nil {
			t.Errorf("got %+v after a successful sync", v.Agent)
		}
	})
}

func TestViewOfSettings(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		web := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
		web.AffinityTimeout = time.Hour
		web.Balancing.Scheduler, web.Balancing.AffinitySet = "lc", true
		web.Balancing.Weights.Nodes = []model.NamedWeight{{Name: "node-b", Weight: 5}}
		web.Slices[0].Endpoints[1].Node = "node-b"
		w.put(web)
		got := map[string]string{}
		for _, s := range onlyFrontend(t, w.view(everything)).Settings {
			got[s.Name] = s.Value + " from " + s.From
		}
		if d := cmp.Diff(map[string]string{
			"weight by node": "node-b=5 from annotation kube-ipvs.io/weight-by-node",
			"scheduler":      "wlc from annotation kube-ipvs.io/scheduler says lc, which ignores weights",
			"affinity":       "1h0m0s from annotation kube-ipvs.io/affinity-timeout",
		}, got); d != "" {
			t.Error(d)
		}
	})
}

func TestViewIsImmutable(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		web := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
		w.put(web)
		before := w.view(everything)
		text, err := json.Marshal(before)
		if err != nil {
			t.Fatal(err)
		}
		w.put(only(web))
		w.remove("web")
		w.audit()
		after, err := json.Marshal(before)
		if err != nil || string(after) != string(text) {
			t.Errorf("the view has changed: %v\n%s\n%s", err, text, after)
		}
		var back view.View
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(back)
		if err != nil || string(again) != string(text) {
			t.Errorf("after a JSON round trip: %v\n%s\n%s", err, text, again)
		}
	})
}

func TestViewStartsNoSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		w.startUnsynced()
		defer w.stop()
		w.fake.TakeCounts()
		if v := w.view(everything); v.Agent.Synced || v.Agent.LastSync != nil {
			t.Errorf("got %+v before the source is synced", v.Agent)
		}
		w.source.mu.Lock()
		w.source.synced = true
		w.source.mu.Unlock()
		w.source.wake()
		synctest.Wait()
		w.fake.TakeCounts()
		syncs := len(w.takeReports())
		for range 100 {
			w.view(everything)
		}
		if c := w.fake.TakeCounts(); c.Writes() > 0 || c.Reads > 0 || c.Lookups > 0 {
			t.Errorf("100 views cost %+v", c)
		}
		if more := len(w.takeReports()); more > 0 {
			t.Errorf("100 views caused %d syncs after the first %d", more, syncs)
		}
	})
}

func TestViewOfAnEndedAgent(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		w.stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, err := w.agent.View(ctx, everything); err == nil || !strings.Contains(err.Error(), "has stopped") {
			t.Errorf("error %v", err)
		}
		w.run()
	})
}

func only(svc *model.Service, endpoints ...model.Endpoint) *model.Service {
	changed, slice := *svc, *svc.Slices[0]
	slice.Endpoints = endpoints
	changed.Slices = []*model.EndpointSlice{&slice}
	return &changed
}

func TestViewDuringALongSync(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.unwatched = true // checking after every operation would take too long
		w.fake.OnOp(func(kernel.Op, error) { time.Sleep(10 * time.Millisecond) })
		const many = 2000
		all := make([]*model.Service, many)
		for i := range all {
			all[i] = compiletest.Service(fmt.Sprint("web-", i), fmt.Sprintf("10.96.%d.%d", 1+i/200, 1+i%200), "10.244.0.5")
		}
		w.put(all...)
		w.start()
		w.sleep(5 * time.Second)
		asked := time.Now()
		v, err := w.agent.View(w.Context(), agent.Query{})
		if err != nil {
			w.Fatal(err)
		}
		if waited := time.Since(asked); waited > time.Minute || v.Totals.Services != many || v.Agent.LastSync != nil {
			w.Errorf("got a view after %s: %+v; the sync takes two minutes", waited, v.Totals)
		}
		w.sleep(10 * time.Minute)
		if r := w.lastReport(); !r.Complete() {
			w.Errorf("the sync did not complete: %v", r.Err)
		}
	})
}
