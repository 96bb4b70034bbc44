package telemetry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestPortOfAnotherProxy: if another program uses the agent's port, an Event, the status and a metric report the
// problem until the port is free.
func TestPortOfAnotherProxy(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", freeport.Get(t))
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	kubeProxy := httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/proxyMode" {
			writeText(w, "iptables")
		}
	})}}
	kubeProxy.Start()
	s := newAPIServer(t)
	cfg := testConfig()
	cfg.API, cfg.MetricsAddress = &rest.Config{Host: s.url}, address
	all, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	all.events.spread, all.servers[0].retry = 0, 20*time.Millisecond
	stop := run(t, all)
	defer stop()
	starting, got := s.next(), s.next()
	if starting.Reason != "Starting" { // the Events may arrive in either order
		starting, got = got, starting
	}
	if starting.Reason != "Starting" {
		t.Errorf("Events: %s %s, %s %s", starting.Reason, starting.Note, got.Reason, got.Note)
	}
	const want = "the agent cannot serve metrics there: kube-proxy in iptables mode uses this port"
	if got.Reason != "NodeProblem" || got.Regarding.Kind != "Node" || !strings.Contains(got.Note, want) {
		t.Errorf("Event: %s on %s: %s", got.Reason, got.Regarding.Kind, got.Note)
	}
	if got := all.Problems(); len(got) != 1 || !strings.Contains(got[0].String(), "Node node-1: --metrics-bind-address") {
		t.Errorf("problems: %v", got)
	}
	if got := values(t, all.metrics)["kube_ipvs_problems kind=node"]; got != 1 {
		t.Errorf("kube_ipvs_problems: %v", got)
	}
	kubeProxy.Close()
	if got := s.next(); got.Reason != "NodeProblemResolved" {
		t.Errorf("Event: %s: %s", got.Reason, got.Note)
	}
	if got, n := all.Problems(), values(t, all.metrics)["kube_ipvs_problems kind=node"]; len(got) != 0 || n != 0 {
		t.Errorf("after the port became free, got problems %v and a count of %v, want none", got, n)
	}
}

func run(t *testing.T, all *Telemetry) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); all.Run(ctx) }()
	return func() { cancel(); <-done }
}

func TestOccupant(t *testing.T) {
	for want, answers := range map[string]map[string]string{
		"kube-proxy in nftables mode or another kube-ipvs": {"/proxyMode": "nftables\n"},
		"kube-proxy in ipvs mode or another kube-ipvs":     {"/proxyMode": "ipvs"},
		"kube-proxy or another kube-ipvs":                  {"/healthz": `{"lastUpdated":"2026-01-01T00:00:00Z","currentTime":"2026-01-01T00:00:00Z"}`},
		"another program":                                  {"/proxyMode": "<html>", "/healthz": "ok"},
	} {
		program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { writeText(w, answers[r.URL.Path]) }))
		if got := occupant(t.Context(), program.Listener.Addr().String()); got != want {
			t.Errorf("%s: %s", want, got)
		}
		program.Close()
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if got := occupant(t.Context(), silent.Addr().String()); got != "another program" {
		t.Errorf("occupant returns %q for a program that does not respond", got)
	}
}

func TestProblemsReplaceEachOther(t *testing.T) {
	all, err := New(testConfig())
	if err != nil {
		t.Fatal(err)
	}
	all.SetProblem(model.Problem{Field: "node lock", Reason: "one"})
	all.SetProblem(model.Problem{Field: "node lock", Reason: "two"})
	if got := all.Problems(); len(got) != 1 || got[0].Reason != "two" || values(t, all.metrics)["kube_ipvs_problems kind=node"] != 1 {
		t.Errorf("%v", got)
	}
}
