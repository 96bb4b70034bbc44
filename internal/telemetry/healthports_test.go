package telemetry

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func startIPv4(t *testing.T, s *apiServer) *Telemetry {
	t.Helper()
	cfg := testConfig()
	cfg.API, cfg.Families = &rest.Config{Host: s.url}, []inet.Family{inet.IPv4}
	all, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	all.events.spread = 0
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); all.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return all
}

// TestHealthPortsOfReports: a Report opens a Service's health check port. If the port is in use, the agent posts an Event on the Service.
func TestHealthPortsOfReports(t *testing.T) {
	s := newAPIServer(t)
	all := startIPv4(t, s)
	if got := s.next(); got.Reason != "Starting" {
		t.Errorf("the first Event is %s: %s", got.Reason, got.Note)
	}

	port := freeport.Get(t)
	holder, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Close() })
	observe := func(number uint16, local int) {
		r := agent.Report{Started: time.Now(), Full: true, Node: node1, Period: 30 * time.Second}
		r.Served = map[model.ServiceID]compile.Served{web: {Health: compile.HealthPort{Port: number, Local: local}}}
		all.Observe(r)
		all.Observe(agent.Report{Started: time.Now(), Node: node1, Period: 30 * time.Second}) // the report omits the Service, so its port stays open
	}
	observe(port, 2)
	if got := s.next(); got.Reason != "FailedToStartServiceHealthcheck" || got.Action != "Listen" || got.Regarding.UID != "uid-web" ||
		!strings.Contains(got.Note, fmt.Sprintf("0.0.0.0:%d: another program uses this port", port)) {
		t.Errorf("got Event %s with action %s and note %q for a port in use", got.Reason, got.Action, got.Note)
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.next(); got.Reason != "StartedServiceHealthcheck" || got.Type != "Normal" {
		t.Errorf("got %s Event %s after the port became free", got.Type, got.Reason)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/healthz", port)
	if code, body := fetch(t, url); code != 200 || !strings.Contains(body, "\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true") {
		t.Errorf("%d %s", code, body)
	}
	observe(port, 0)
	if code, body := fetch(t, url); code != 503 {
		t.Errorf("without endpoints, the health check returns %d %s, want 503", code, body)
	}
	got := values(t, all.metrics)
	for name, want := range map[string]float64{
		"kube_ipvs_health_check_ports state=listening": 1, "kube_ipvs_health_checks_total code=200": 1, "kube_ipvs_health_checks_total code=503": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	observe(0, 0)
	untilClosed(t, port)
}

func untilClosed(t *testing.T, port uint16) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("the port is still open although the Service is gone")
		}
	}
}

// TestHealthChecksFailWhileTheAgentIsUnhealthy: health checks still pass on a node that is being deleted.
func TestHealthChecksFailWhileTheAgentIsUnhealthy(t *testing.T) {
	h, _, _ := newTestHealth(Source{})
	now := time.Now()
	for what, step := range map[string]struct {
		report agent.Report
		well   bool
	}{
		"a successful sync":        {agent.Report{Started: now, Full: true, Node: node1, Period: 30 * time.Second}, true},
		"a node being deleted":     {agent.Report{Started: now, Full: true, Node: &model.Node{Leaving: true}, Period: 30 * time.Second}, true},
		"no sync for five minutes": {agent.Report{Started: now.Add(-5 * time.Minute), Full: true, Node: node1, Period: 30 * time.Second}, false},
	} {
		h.observe(&step.report)
		if got := h.healthy(now); (got == nil) != step.well {
			t.Errorf("%s: %q", what, got)
		}
	}
}
