package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-ipvs/kube-ipvs/internal/healthport"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// running runs a server until the test ends. The channel receives the server's address.
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

// client does not reuse connections, so that no connection stays open after a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
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
			t.Errorf("before the first sync, /readyz returns %d, want 503", code)
		}
		all.Observe(*endedSync(true, nil))
		for _, path := range []string{"/healthz", "/livez", "/readyz"} {
			if code, body := fetch(t, atHealth+path); code != 200 {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		leaving := endedSync(true, nil)
		leaving.Node = &model.Node{Leaving: true}
		all.Observe(*leaving)
		if code, _ := fetch(t, atHealth+"/healthz"); code != 503 {
			t.Errorf("/healthz of a node that is not eligible returns %d, want 503", code)
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
			t.Errorf("with profiling %v, pprof returns %d, want %d", profiling, code, want)
		}
		if code, _ := fetch(t, atHealth+"/debug/pprof/cmdline"); code != 404 {
			t.Errorf("pprof on the health server returns %d, want 404", code)
		}
		cancel()
		<-done
		if _, err := client.Get(atHealth + "/livez"); err == nil {
			t.Error("the server still responds after it has stopped")
		}
	}
}

func TestNothingIsServedWithoutAddresses(t *testing.T) {
	all, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	if len(all.servers) != 0 || all.events != nil {
		t.Errorf("got servers %v and events %v, want none", all.servers, all.events)
	}
	all.Observe(busy())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	all.Run(ctx)
}

// TestAddressInUseIsRetried: the failure is logged once, and the server starts as soon as the address is free.
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

// TestServerFailsAgain: after the server has listened, the next failure is a new one, even for the same reason.
func TestServerFailsAgain(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	s := &server{what: "health", log: zap.New(core), handler: http.NotFoundHandler(), listen: func(string) (net.Listener, error) {
		switch calls++; calls {
		case 3:
			return brokenListener{}, nil
		case 6:
			cancel()
		}
		return nil, errors.New("in use")
	}}
	s.run(ctx)
	var reasons []string
	for _, e := range logs.All() {
		reasons = append(reasons, fmt.Sprint(e.ContextMap()["error"]))
	}
	if want := []string{"in use", "broken", "in use"}; !slices.Equal(reasons, want) {
		t.Errorf("reported %q, want %q", reasons, want)
	}
}

type brokenListener struct{}

func (brokenListener) Accept() (net.Conn, error) { return nil, errors.New("broken") }
func (brokenListener) Close() error              { return nil }
func (brokenListener) Addr() net.Addr            { return &net.TCPAddr{} }

// TestStopCutsSlowClients: the agent stops even if a client is downloading a profile.
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
		t.Fatal("the server did not stop")
	}
	if err := <-cut; err == nil {
		t.Error("the slow client got a response")
	}
}

// Anyone may open connections to the health port. Above the limit, the server accepts a new connection and closes the
// oldest.
func TestConnectionsAreBounded(t *testing.T) {
	waiting := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/wait", func(_ http.ResponseWriter, r *http.Request) { waiting <- struct{}{}; <-r.Context().Done() })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok") })
	at := (<-running(t, &server{what: "health", address: "127.0.0.1:0", log: zap.NewNop(), retry: time.Second, handler: mux})).String()
	var open []net.Conn
	for range healthport.MaxConnections {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, "GET /wait HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		<-waiting
		open = append(open, c)
	}
	if code, _ := fetch(t, "http://"+at+"/healthz"); code != http.StatusOK {
		t.Errorf("the new connection received status %d", code)
	}
	_ = open[0].SetReadDeadline(time.Now().Add(client.Timeout))
	if _, err := open[0].Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest connection is still open")
	}
}
