package telemetry

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// newTestHealth is that of a node whose Services come from an API server.
func newTestHealth(source Source) (*health, http.Handler, *metrics) {
	cfg := testConfig()
	cfg.API, cfg.Source = &rest.Config{}, source
	h, m := newHealth(cfg), newMetrics(cfg)
	return h, h.handler(m), m
}

var node1 = &model.Node{Name: "node-1"}

// pass is a pass that ends now.
func pass(full bool, err error) *agent.Report {
	return &agent.Report{Started: time.Now(), Full: full, Err: err, Node: node1, Period: 30 * time.Second}
}

func get(t *testing.T, h http.Handler, path string) (int, healthStatus, http.Header) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
	var s healthStatus
	if answer.Header().Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil {
			t.Errorf("%s: %v: %s", path, err, answer.Body)
		}
	}
	return answer.Code, s, answer.Header()
}

// TestHealthTellsTheTruth goes through everything that can happen to passes. Periods are 30 s, so that the bound is 60 s.
func TestHealthTellsTheTruth(t *testing.T) {
	type step struct {
		after time.Duration
		pass  *struct {
			full bool
			err  error
		}
		healthy bool
		reason  string
	}
	did := func(full bool, err error) *struct {
		full bool
		err  error
	} {
		return &struct {
			full bool
			err  error
		}{full, err}
	}
	for name, steps := range map[string][]step{
		"no sync since the start":   {{after: time.Minute, healthy: true}, {after: time.Second, reason: "no sync for 1m1s"}},
		"syncs, then none":          {{pass: did(true, nil), healthy: true}, {after: time.Minute, healthy: true}, {after: time.Second, reason: "no sync"}},
		"one failure, then success": {{pass: did(true, errIO), healthy: true}, {after: 50 * time.Second, pass: did(true, nil), healthy: true}, {after: 50 * time.Second, healthy: true}},
		"failing for ever, without a change": {
			{pass: did(true, nil), healthy: true},
			{after: 30 * time.Second, pass: did(true, errIO), healthy: true},
			{after: 30 * time.Second, pass: did(true, errIO), healthy: true},
			{after: 30 * time.Second, pass: did(true, errIO), healthy: true},
			{after: time.Second, pass: did(true, errIO), reason: "syncs have been failing for 1m1s"},
			{after: time.Second, pass: did(true, nil), healthy: true},
		},
		"touched passes do not hide that full ones fail": {
			{pass: did(true, errIO), healthy: true},
			{after: 30 * time.Second, pass: did(false, nil), healthy: true},
			{after: 31 * time.Second, pass: did(false, nil), reason: "failing"},
		},
		"a failed change that the next full pass repairs": {
			{pass: did(false, errIO), healthy: true},
			{after: 59 * time.Second, pass: did(true, nil), healthy: true},
			{after: 59 * time.Second, pass: did(false, nil), healthy: true},
		},
		"silence ends": {{after: time.Hour, reason: "no sync"}, {pass: did(true, nil), healthy: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, handler, _ := newTestHealth(Source{})
				for i, step := range steps {
					time.Sleep(step.after)
					if step.pass != nil {
						h.observe(pass(step.pass.full, step.pass.err))
					}
					want := http.StatusServiceUnavailable
					if step.healthy {
						want = http.StatusOK
					}
					code, s, _ := get(t, handler, "/healthz")
					if code != want || s.Healthy != step.healthy || !strings.Contains(s.Reason, step.reason) {
						t.Errorf("step %d: /healthz answers %d %+v, want %d because of %q", i, code, s, want, step.reason)
					}
					for _, f := range inet.Families {
						if s.Status[f.String()].Healthy != step.healthy {
							t.Errorf("step %d: /healthz says of %s: %+v", i, f, s.Status)
						}
					}
				}
			})
		})
	}
}

// TestLivenessAsksForARestartOnlyWhereOneHelps: in no other case may the kubelet kill the agent.
func TestLivenessAsksForARestartOnlyWhereOneHelps(t *testing.T) {
	const patience = time.Minute + stuckAfter // two periods, and then some
	type world struct {
		*testing.T
		health  *health
		handler http.Handler
		synced  bool
	}
	alive := func(w *world, want int) {
		w.Helper()
		if code, s, _ := get(w.T, w.handler, "/livez"); code != want || s.Healthy != (want == 200) {
			w.Errorf("%d %+v, want %d", code, s, want)
		}
	}
	for name, story := range map[string]func(*world){
		"the API server is away from the start": func(w *world) {
			w.synced = false
			for range 24 {
				alive(w, 200)
				time.Sleep(time.Hour)
			}
			alive(w, 200)
			if code, _, _ := get(w.T, w.handler, "/healthz"); code != 503 {
				w.Errorf("/healthz: %d; a node that does not know its Services should get no traffic", code)
			}
			w.synced = true // the first pass takes its time
			alive(w, 200)
			time.Sleep(patience)
			alive(w, 200)
			w.health.observe(pass(true, nil))
			alive(w, 200)
		},
		"the first pass hangs": func(w *world) {
			alive(w, 200)
			time.Sleep(patience + time.Second)
			alive(w, 503)
		},
		"a later pass hangs": func(w *world) {
			w.health.observe(pass(true, nil))
			time.Sleep(patience)
			alive(w, 200)
			time.Sleep(time.Second)
			alive(w, 503)
			w.health.observe(pass(true, nil))
			alive(w, 200)
		},
		"the kernel refuses everything": func(w *world) {
			for range 1000 {
				w.health.observe(pass(true, errIO))
				time.Sleep(30 * time.Second)
			}
			alive(w, 200)
			if code, _, _ := get(w.T, w.handler, "/healthz"); code != 503 {
				w.Errorf("/healthz: %d", code)
			}
		},
		"the node is drained and deleted": func(w *world) {
			leaving, gone := pass(true, nil), pass(true, nil)
			leaving.Node, gone.Node = &model.Node{Leaving: true}, nil
			w.health.observe(leaving)
			alive(w, 200)
			w.health.observe(gone)
			alive(w, 200)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{T: t, synced: true}
				w.health, w.handler, _ = newTestHealth(Source{Synced: func() bool { return w.synced }})
				story(w)
			})
		})
	}
}

// TestEligibility: whether load balancers may send a healthy node traffic.
func TestEligibility(t *testing.T) {
	leaving := &model.Node{Name: "node-1", Leaving: true}
	for name, c := range map[string]struct {
		node      *model.Node
		manifests bool
		reason    string
	}{
		"a Node":                            {node: node1},
		"a Node that is leaving":            {node: leaving, reason: "being deleted"},
		"no Node":                           {reason: "has no Node node-1"},
		"manifests with the Node":           {manifests: true, node: node1},
		"manifests with a Node that leaves": {manifests: true, node: leaving, reason: "being deleted"},
		"manifests without the Node":        {manifests: true},
	} {
		cfg := testConfig()
		if !c.manifests {
			cfg.API = &rest.Config{}
		}
		h := newHealth(cfg)
		handler := h.handler(newMetrics(cfg))
		if code, s, _ := get(t, handler, "/healthz"); code != 200 || !*s.NodeEligible {
			t.Errorf("%s, before the first pass: %d %+v", name, code, s)
		}
		r := pass(true, nil)
		r.Node = c.node
		h.observe(r)
		want := map[bool]int{true: 200, false: 503}[c.reason == ""]
		code, s, _ := get(t, handler, "/healthz")
		if code != want || !s.Healthy || *s.NodeEligible != (want == 200) || !strings.Contains(s.Reason, c.reason) {
			t.Errorf("%s: %d %+v; want %d, healthy itself, because of %q", name, code, s, want, c.reason)
		}
	}
}

func TestAnswersAreKubeProxys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, handler, m := newTestHealth(Source{})
		h.observe(pass(true, nil))
		good := time.Now()
		time.Sleep(10 * time.Second)
		code, s, header := get(t, handler, "/healthz")
		if code != 200 || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Content-Type") != "application/json" {
			t.Errorf("%d, %v", code, header)
		}
		if !s.LastUpdated.Equal(time.Now()) || !s.CurrentTime.Equal(time.Now()) || !s.Status["IPv4"].LastUpdated.Equal(good) {
			t.Errorf("times in %+v; want lastUpdated now, and of the family the last pass", s)
		}
		if s.NodeEligible == nil || !*s.NodeEligible {
			t.Errorf("nodeEligible in %+v, want true", s)
		}
		if _, s, _ := get(t, handler, "/livez"); s.NodeEligible != nil {
			t.Error("/livez speaks of the node")
		}

		leaving := pass(true, nil)
		leaving.Node = &model.Node{Leaving: true}
		h.observe(leaving)
		code, s, _ = get(t, handler, "/healthz")
		if code != 503 || !s.Healthy || *s.NodeEligible || !s.LastUpdated.Equal(leaving.Started) {
			t.Errorf("a node that is not eligible: %d %+v; want 503, healthy itself, and the last pass", code, s)
		}
		if code, _, _ := get(t, handler, "/livez"); code != 200 {
			t.Errorf("/livez of a node that is not eligible: %d", code)
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

func TestFieldsOfAnswers(t *testing.T) {
	h, handler, _ := newTestHealth(Source{})
	h.observe(pass(true, nil))
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest("GET", "/healthz", nil))
	var fields map[string]any
	if err := json.Unmarshal(answer.Body.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, []string{"currentTime", "healthy", "lastUpdated", "nodeEligible", "status"}) {
		t.Errorf("fields %q", got)
	}
}

func TestReadyAfterTheFirstFullPass(t *testing.T) {
	h, handler, _ := newTestHealth(Source{})
	ready := func(want int) {
		t.Helper()
		if code, _, _ := get(t, handler, "/readyz"); code != want {
			t.Errorf("/readyz answers %d, want %d", code, want)
		}
	}
	ready(503)
	h.observe(pass(true, errIO))
	ready(503)
	h.observe(pass(false, nil))
	ready(503)
	h.observe(pass(true, nil))
	ready(200)
	h.observe(pass(true, errIO)) // traffic is served as before
	ready(200)
}

// TestNotReadyWhileTheSourceIsSilent: what is served may be outdated. Load balancers are not told, because the API server is
// away for all nodes at once.
func TestNotReadyWhileTheSourceIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := map[string]time.Time{"Service": time.Now(), "EndpointSlice": time.Now(), "Node": time.Now()}
		h, handler, _ := newTestHealth(Source{LastHeard: func() map[string]time.Time { return heard }})
		answers := func(want int, reason string) {
			t.Helper()
			h.observe(pass(true, nil))
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

// running runs a server until the test ends, and tells where it listens.
func running(t *testing.T, s *server) <-chan net.Addr {
	t.Helper()
	at := make(chan net.Addr, 1)
	s.listening = func(a net.Addr) { at <- a }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return at
}

// client keeps no connections, so that none is left behind.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestServersOnLoopback(t *testing.T) {
	for _, profiling := range []bool{false, true} {
		cfg := testConfig()
		cfg.HealthAddress, cfg.MetricsAddress, cfg.Profiling = "127.0.0.1:0", "127.0.0.1:0", profiling
		cfg.Configuration = func() ([]byte, error) { return []byte("{\"ipvs\": {\"scheduler\": \"rr\"}}\n"), nil }
		all, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		health, metrics := make(chan net.Addr, 1), make(chan net.Addr, 1)
		all.servers[0].listening = func(a net.Addr) { health <- a }
		all.servers[1].listening = func(a net.Addr) { metrics <- a }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); all.Run(ctx) }()
		atHealth, atMetrics := "http://"+(<-health).String(), "http://"+(<-metrics).String()

		if code, _ := fetch(t, atHealth+"/readyz"); code != 503 {
			t.Errorf("/readyz before the first pass: %d", code)
		}
		all.Observe(*pass(true, nil))
		for _, path := range []string{"/healthz", "/livez", "/readyz"} {
			if code, body := fetch(t, atHealth+path); code != 200 {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		leaving := pass(true, nil)
		leaving.Node = &model.Node{Leaving: true}
		all.Observe(*leaving)
		if code, _ := fetch(t, atHealth+"/healthz"); code != 503 {
			t.Errorf("/healthz of a node that is not eligible: %d", code)
		}
		for path, want := range map[string]string{
			"/healthz": "ok", "/proxyMode": "ipvs", "/configz": "{\"config.kube-ipvs.io\": {\"ipvs\": {\"scheduler\": \"rr\"}}}\n",
		} {
			if code, body := fetch(t, atMetrics+path); code != 200 || body != want {
				t.Errorf("%s: %d %q, want %q", path, code, body, want)
			}
		}
		_, body := fetch(t, atMetrics+"/metrics")
		for _, want := range []string{"kube_ipvs_build_info{", "go_goroutines ", "process_resident_memory_bytes ", `kube_ipvs_syncs_total{kind="full",result="ok"} 2`} {
			if !strings.Contains(body, want) {
				t.Errorf("/metrics has no %s", want)
			}
		}
		want := map[bool]int{false: 404, true: 200}[profiling]
		if code, _ := fetch(t, atMetrics+"/debug/pprof/cmdline"); code != want {
			t.Errorf("pprof with profiling %v: %d", profiling, code)
		}
		if code, _ := fetch(t, atHealth+"/debug/pprof/cmdline"); code != 404 {
			t.Errorf("pprof on the health server: %d", code)
		}
		cancel()
		<-done
		if _, err := client.Get(atHealth + "/livez"); err == nil {
			t.Error("serves on after it was stopped")
		}
	}
}

func TestNothingIsServedWithoutAddresses(t *testing.T) {
	all, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	if len(all.servers) != 0 || all.events != nil {
		t.Errorf("servers %v, events %v", all.servers, all.events)
	}
	all.Observe(busy())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all.Run(ctx)
}

// TestAddressInUseIsRetried: logged once, and served as soon as the address is free.
func TestAddressInUseIsRetried(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	_, handler, _ := newTestHealth(Source{})
	s := &server{what: "health", flag: "--healthz-bind-address", address: taken.Addr().String(), handler: handler, log: zap.New(core), retry: 20 * time.Millisecond}
	at := running(t, s)
	time.Sleep(200 * time.Millisecond)
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if code, _ := fetch(t, "http://"+(<-at).String()+"/livez"); code != 200 {
		t.Errorf("status %d", code)
	}
	if got := logs.FilterMessageSnippet("cannot serve health").Len(); got != 1 {
		t.Errorf("logged %d times, want once", got)
	}
}

// TestStopCutsSlowClients: an open profile does not keep the agent from stopping.
func TestStopCutsSlowClients(t *testing.T) {
	started := make(chan struct{})
	s := &server{what: "metrics", address: "127.0.0.1:0", log: zap.NewNop(), handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
	})}
	at := make(chan net.Addr, 1)
	s.listening = func(a net.Addr) { at <- a }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.run(ctx) }()
	cut := make(chan error, 1)
	go func() {
		_, err := client.Get("http://" + (<-at).String())
		cut <- err
	}()
	<-started
	cancel()
	select {
	case <-done:
	case <-time.After(stopTimeout + 10*time.Second):
		t.Fatal("does not stop")
	}
	if err := <-cut; err == nil {
		t.Error("the slow client got an answer")
	}
}
