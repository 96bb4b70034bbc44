package telemetry

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func newTestHealth(source Source) (*health, http.Handler, *metrics) {
	cfg := testConfig()
	cfg.API, cfg.Source = &rest.Config{}, source
	h, m := newHealth(cfg), newMetrics(cfg)
	return h, h.handler(m), m
}

var node1 = &model.Node{Name: "node-1"}

func endedSync(full bool, err error) *agent.Report {
	return &agent.Report{Started: time.Now(), Full: full, Err: err, Node: node1, Period: 30 * time.Second}
}

func get(t *testing.T, h http.Handler, path string) (int, healthStatus, http.Header) {
	t.Helper()
	response := httptest.NewRecorder()
	h.ServeHTTP(response, httptest.NewRequest("GET", path, nil))
	var s healthStatus
	if response.Header().Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(response.Body.Bytes(), &s); err != nil {
			t.Errorf("%s: %v: %s", path, err, response.Body)
		}
	}
	return response.Code, s, response.Header()
}

// TestHealthTellsTheTruth covers every sequence of successful and failed syncs. With a period of 30 s, the agent is unhealthy
// after 60 s.
func TestHealthTellsTheTruth(t *testing.T) {
	type outcome struct {
		full bool
		err  error
	}
	type step struct {
		after   time.Duration
		sync    *outcome
		healthy bool
		reason  string
	}
	did := func(full bool, err error) *outcome { return &outcome{full, err} }
	for name, steps := range map[string][]step{
		"no sync since the start":   {{after: time.Minute, healthy: true}, {after: time.Second, reason: "no sync for 1m1s"}},
		"syncs, then none":          {{sync: did(true, nil), healthy: true}, {after: time.Minute, healthy: true}, {after: time.Second, reason: "no sync"}},
		"one failure, then success": {{sync: did(true, errIO), healthy: true}, {after: 50 * time.Second, sync: did(true, nil), healthy: true}, {after: 50 * time.Second, healthy: true}},
		"failing without changes": {
			{sync: did(true, nil), healthy: true},
			{after: 30 * time.Second, sync: did(true, errIO), healthy: true},
			{after: 30 * time.Second, sync: did(true, errIO), healthy: true},
			{after: 30 * time.Second, sync: did(true, errIO), healthy: true},
			{after: time.Second, sync: did(true, errIO), reason: "syncs have been failing for 1m1s"},
			{after: time.Second, sync: did(true, nil), healthy: true},
		},
		"incremental syncs do not hide that full ones fail": {
			{sync: did(true, errIO), healthy: true},
			{after: 30 * time.Second, sync: did(false, nil), healthy: true},
			{after: 31 * time.Second, sync: did(false, nil), reason: "failing"},
		},
		"a failed change that the next full sync repairs": {
			{sync: did(false, errIO), healthy: true},
			{after: 59 * time.Second, sync: did(true, nil), healthy: true},
			{after: 59 * time.Second, sync: did(false, nil), healthy: true},
		},
		"syncs again after an hour": {{after: time.Hour, reason: "no sync"}, {sync: did(true, nil), healthy: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, handler, _ := newTestHealth(Source{})
				for i, step := range steps {
					time.Sleep(step.after)
					if step.sync != nil {
						h.observe(endedSync(step.sync.full, step.sync.err))
					}
					want := http.StatusServiceUnavailable
					if step.healthy {
						want = http.StatusOK
					}
					code, s, _ := get(t, handler, "/healthz")
					if code != want || s.Healthy != step.healthy || !strings.Contains(s.Reason, step.reason) {
						t.Errorf("step %d: /healthz returns %d %+v, want %d because of %q", i, code, s, want, step.reason)
					}
					for _, f := range inet.Families {
						if s.Status[f.String()].Healthy != step.healthy {
							t.Errorf("step %d: /healthz returns %+v, want %s healthy %t", i, s.Status, f, step.healthy)
						}
					}
				}
			})
		})
	}
}

// agentStory is a scenario in which the kubelet probes an agent for liveness.
type agentStory struct {
	*testing.T
	health  *health
	handler http.Handler
	synced  bool
}

func (w *agentStory) alive(want int) {
	w.Helper()
	if code, s, _ := get(w.T, w.handler, "/livez"); code != want || s.Healthy != (want == 200) {
		w.Errorf("/livez: %d %+v, want %d", code, s, want)
	}
}

const patience = time.Minute + stuckAfter

var livenessStories = map[string]func(*agentStory){
	"the API server is unavailable from the start": func(w *agentStory) {
		w.synced = false
		for range 24 {
			w.alive(200)
			time.Sleep(time.Hour)
		}
		w.alive(200)
		if code, _, _ := get(w.T, w.handler, "/healthz"); code != 503 {
			w.Errorf("/healthz returns %d, but a node that serves no Services should get no traffic", code)
		}
		w.synced = true // the first sync is slow
		w.alive(200)
		time.Sleep(patience)
		w.alive(200)
		w.health.observe(endedSync(true, nil))
		w.alive(200)
	},
	"the first sync hangs": func(w *agentStory) {
		w.alive(200)
		time.Sleep(patience + time.Second)
		w.alive(503)
	},
	"a later sync hangs": func(w *agentStory) {
		w.health.observe(endedSync(true, nil))
		time.Sleep(patience)
		w.alive(200)
		time.Sleep(time.Second)
		w.alive(503)
		w.health.observe(endedSync(true, nil))
		w.alive(200)
	},
	"the kernel refuses every write": func(w *agentStory) {
		for range 1000 {
			w.health.observe(endedSync(true, errIO))
			time.Sleep(30 * time.Second)
		}
		w.alive(200)
		if code, _, _ := get(w.T, w.handler, "/healthz"); code != 503 {
			w.Errorf("/healthz: %d", code)
		}
	},
	"the node is drained and deleted": func(w *agentStory) {
		leaving, gone := endedSync(true, nil), endedSync(true, nil)
		leaving.Node, gone.Node = &model.Node{Leaving: true}, nil
		w.health.observe(leaving)
		w.alive(200)
		w.health.observe(gone)
		w.alive(200)
	},
}

// TestLivenessFailsOnlyWhereARestartHelps: if a restart would not help, the kubelet must not kill the agent.
func TestLivenessFailsOnlyWhereARestartHelps(t *testing.T) {
	for name, story := range livenessStories {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &agentStory{T: t, synced: true}
				w.health, w.handler, _ = newTestHealth(Source{Synced: func() bool { return w.synced }})
				story(w)
			})
		})
	}
}

func TestEligibility(t *testing.T) {
	leaving := &model.Node{Name: "node-1", Leaving: true}
	for name, c := range map[string]struct {
		node      *model.Node
		manifests bool
		reason    string
	}{
		"a Node":                              {node: node1},
		"a Node being deleted":                {node: leaving, reason: "being deleted"},
		"no Node":                             {reason: "has no Node node-1"},
		"manifests with the Node":             {manifests: true, node: node1},
		"manifests with a Node being deleted": {manifests: true, node: leaving, reason: "being deleted"},
		"manifests without the Node":          {manifests: true},
	} {
		cfg := testConfig()
		if !c.manifests {
			cfg.API = &rest.Config{}
		}
		h := newHealth(cfg)
		handler := h.handler(newMetrics(cfg))
		if code, s, _ := get(t, handler, "/healthz"); code != 200 || !*s.NodeEligible {
			t.Errorf("%s: before the first sync, /healthz returns %d %+v, want 200 and an eligible node", name, code, s)
		}
		r := endedSync(true, nil)
		r.Node = c.node
		h.observe(r)
		want := map[bool]int{true: 200, false: 503}[c.reason == ""]
		code, s, _ := get(t, handler, "/healthz")
		if code != want || !s.Healthy || *s.NodeEligible != (want == 200) || !strings.Contains(s.Reason, c.reason) {
			t.Errorf("%s: /healthz returns %d %+v, want %d, Healthy true and the reason %q", name, code, s, want, c.reason)
		}
	}
}

// A first sync may take minutes on a slow node. While the kernel serves an earlier agent's state, load balancers may use the node. A new
// node serves nothing yet.
func TestLongFirstSync(t *testing.T) {
	for _, serving := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			cfg := testConfig()
			cfg.Serving = serving
			h := newHealth(cfg)
			time.Sleep(3 * time.Minute)
			if err := h.healthy(time.Now()); (err == nil) != serving {
				t.Errorf("serving %t: healthy returns %v during the first sync", serving, err)
			}
			h.observe(endedSync(true, nil))
			time.Sleep(61 * time.Second)
			if err := h.healthy(time.Now()); err == nil {
				t.Error("the agent counts as healthy after more than two periods without a sync")
			}
			h = newHealth(cfg)
			time.Sleep(time.Minute + stuckAfter + time.Second)
			if err := h.healthy(time.Now()); err == nil {
				t.Error("the agent counts as healthy although the first sync never ends")
			}
		})
	}
}

// I16: /healthz and the metric name exactly the parts that have not worked for two periods.
func TestStuckPartsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, m := newTestHealth(Source{})
		began := time.Now()
		time.Sleep(2 * time.Minute)
		for _, c := range []struct {
			parts []string
			want  string
		}{
			{[]string{"ip6tables"}, "ip6tables has not worked for 2m0s"},
			{[]string{"ip6tables", "iptables"}, "ip6tables has not worked for 2m0s, iptables has not worked for 2m0s"},
			{nil, "<nil>"},
		} {
			r, since := endedSync(len(c.parts) == 0, nil), map[string]float64{"iptables": 0, "ip6tables": 0}
			for _, part := range c.parts {
				r.Stuck = append(r.Stuck, kernel.StuckError{Part: part, Since: began})
				since[part] = float64(began.Unix())
			}
			h.observe(r)
			m.observeStuck(r)
			if got := fmt.Sprint(h.healthy(time.Now())); got != c.want {
				t.Errorf("%v are stuck: healthy returns %q, want %q", c.parts, got, c.want)
			}
			expectSeries(t, fmt.Sprint(c.parts, " are stuck"), m, "kube_ipvs_stuck_since_timestamp_seconds", since)
		}
	})
}

func TestResponsesMatchKubeProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, handler, _ := newTestHealth(Source{})
		h.observe(endedSync(true, nil))
		good := time.Now()
		time.Sleep(10 * time.Second)
		code, s, header := get(t, handler, "/healthz")
		if code != 200 || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Content-Type") != "application/json" {
			t.Errorf("/healthz returns status %d and header %v", code, header)
		}
		if !s.LastUpdated.Equal(time.Now()) || !s.CurrentTime.Equal(time.Now()) || !s.Status["IPv4"].LastUpdated.Equal(good) {
			t.Errorf("wrong times in %+v: want lastUpdated now, and for IPv4 the time of the last sync", s)
		}
		if s.NodeEligible == nil || !*s.NodeEligible {
			t.Errorf("/healthz returns %+v, want nodeEligible true", s)
		}
		if _, s, _ := get(t, handler, "/livez"); s.NodeEligible != nil {
			t.Error("/livez has the field nodeEligible")
		}
	})
}

func TestResponsesOfADeletedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, handler, m := newTestHealth(Source{})
		h.observe(endedSync(true, nil))
		time.Sleep(10 * time.Second)
		for _, path := range []string{"/healthz", "/livez"} {
			if code, _, _ := get(t, handler, path); code != 200 {
				t.Errorf("%s before: %d", path, code)
			}
		}
		leaving := endedSync(true, nil)
		leaving.Node = &model.Node{Leaving: true}
		h.observe(leaving)
		code, s, _ := get(t, handler, "/healthz")
		if code != 503 || !s.Healthy || *s.NodeEligible || !s.LastUpdated.Equal(leaving.Started) {
			t.Errorf("/healthz of a node that is not eligible returns %d %+v, want 503, Healthy true and the time of the last sync", code, s)
		}
		if code, _, _ := get(t, handler, "/livez"); code != 200 {
			t.Errorf("/livez of a node that is not eligible returns %d, want 200", code)
		}
		got := values(t, m)
		for name, want := range map[string]float64{
			"kubeproxy_proxy_healthz_total code=200": 1, "kubeproxy_proxy_healthz_total code=503": 1, "kubeproxy_proxy_livez_total code=200": 2,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
	})
}

func TestFieldsOfResponses(t *testing.T) {
	h, handler, _ := newTestHealth(Source{})
	h.observe(endedSync(true, nil))
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequest("GET", "/healthz", nil))
	var fields map[string]any
	if err := json.Unmarshal(response.Body.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, []string{"currentTime", "healthy", "lastUpdated", "nodeEligible", "status"}) {
		t.Errorf("fields %q", got)
	}
}

func TestReadyAfterTheFirstFullSync(t *testing.T) {
	h, handler, _ := newTestHealth(Source{})
	ready := func(want int) {
		t.Helper()
		if code, _, _ := get(t, handler, "/readyz"); code != want {
			t.Errorf("/readyz returns %d, want %d", code, want)
		}
	}
	ready(503)
	h.observe(endedSync(true, errIO))
	ready(503)
	h.observe(endedSync(false, nil))
	ready(503)
	interrupted := endedSync(true, nil)
	interrupted.Partial = true
	h.observe(interrupted)
	ready(503)
	h.observe(endedSync(true, nil))
	ready(200)
	h.observe(endedSync(true, errIO)) // Services are still served
	ready(200)
}

// TestNotReadyWhileTheSourceIsStale: the agent may serve outdated endpoints. /healthz still returns 200: if the API
// server is unavailable to all nodes, load balancers must still find nodes.
func TestNotReadyWhileTheSourceIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := map[string]time.Time{"Service": time.Now(), "EndpointSlice": time.Now(), "Node": time.Now()}
		h, handler, _ := newTestHealth(Source{LastContact: func() map[string]time.Time { return heard }})
		answers := func(want int, reason string) {
			t.Helper()
			h.observe(endedSync(true, nil))
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequest("GET", "/readyz", nil))
			if recorder.Code != want || !strings.Contains(recorder.Body.String(), reason) {
				t.Errorf("%d %s, want %d %s", recorder.Code, recorder.Body, want, reason)
			}
			for _, path := range []string{"/healthz", "/livez"} {
				if code, s, _ := get(t, handler, path); code != 200 || (s.Stale != "") != (want == 503) || !strings.Contains(reason+"ok", s.Stale) {
					t.Errorf("%s: %d %+v", path, code, s)
				}
			}
		}
		time.Sleep(staleAfter)
		answers(200, "ok")
		time.Sleep(time.Second)
		heard["Service"], heard["Node"] = time.Now(), time.Now()
		answers(503, "no news of EndpointSlice objects from the API server for 5m1s")
		heard["EndpointSlice"] = time.Now()
		answers(200, "ok")
	})
}
