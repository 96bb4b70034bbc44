package inspect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func TestCommands(t *testing.T) {
	s := newStage(t)
	t.Run("with the agent", func(t *testing.T) { withAgent(t, s) })
	if err := s.agent.Stop(patience); err != nil {
		t.Fatal(err)
	}
	t.Run("without the agent", func(t *testing.T) { withoutAgent(t, s) })
	t.Run("cleanup --keep-services", func(t *testing.T) { keepsServices(t, s) })
}

func withAgent(t *testing.T, s *stage) {
	conns := []*cluster.Conn{
		s.client.Open(t, cluster.TCP, plainIP+":80"), s.client.Open(t, cluster.TCP, plainIP+":80"), s.outside.Open(t, cluster.TCP, plainIP+":80"),
	}
	for _, c := range conns {
		c.MustPing(t)
	}
	checkServices(t, s)
	checkConnections(t, s)
	checkStatus(t, s)
	checkExplain(t, s, conns[0])
	checkMetrics(t, s)
	for _, c := range conns {
		c.Close()
	}
}

func checkServices(t *testing.T, s *stage) {
	t.Helper()
	list := runJSON[inspect.ServiceList](t, s, "services", "default/plain")
	frontend := list.Items[0].Frontends[0]
	if !list.Agent || frontend.Connections == nil || frontend.Connections.Active != 3 || frontend.State != view.Served {
		t.Errorf("with 3 open connections, services shows %+v", frontend)
	}
	for _, e := range frontend.Endpoints {
		if e.State != view.Ready || e.Connections.Active != 1 || e.Pod == "" || e.Node == "" {
			t.Errorf("got endpoint %+v, want a ready endpoint with one connection, a pod and a node", e)
		}
	}
}

func checkConnections(t *testing.T, s *stage) {
	t.Helper()
	listed := runJSON[inspect.ConnectionList](t, s, "conns", "default/plain").Items
	if len(listed) != 3 || listed[0].Name != "plain" || listed[0].Pod == "" || listed[0].State != "ESTABLISHED" {
		t.Errorf("connections %+v", listed)
	}
}

func checkStatus(t *testing.T, s *stage) {
	t.Helper()
	status := runJSON[inspect.Status](t, s, "status")
	if !status.Agent || status.View.Node.Name != s.node.Name ||
		status.View.Totals.Services != services || status.Machine.Owned < services || status.Machine.Connections.Active != 3 {
		t.Errorf("status %+v", status)
	}
}

func checkExplain(t *testing.T, s *stage, c *cluster.Conn) {
	t.Helper()
	path := runJSON[explanations](t, s, "explain", plainIP+":80", "--from", c.Local.String()).Items[0]
	if path.Verdict != explain.Passes || path.Connection != c.Local.String() || len(path.Endpoints) != 1 || path.Endpoints[0].Pod != "default/"+c.Server {
		t.Errorf("path of %s: %+v", c, path)
	}
	if fresh := runJSON[explanations](t, s, "explain", plainIP+":80", "--from", s.client.V4.String()).Items[0]; len(fresh.Endpoints) != 3 {
		t.Errorf("explain shows %+v for a new connection, want three endpoints", fresh)
	}
}

// /configz contains the settings, as in other Kubernetes components.
func checkMetrics(t *testing.T, s *stage) {
	var page cluster.Page
	const series = `kube_ipvs_service_connections_total{protocol="tcp",service_name="plain",service_namespace="default",service_port="http"} 3`
	cluster.Eventually(t, patience, "connections are counted", func() (err error) { // the kernel updates its estimators every two seconds
		if page, err = s.node.HTTPGet("http://127.0.0.1:10249/metrics"); err == nil && !strings.Contains(page.Body, series) {
			err = fmt.Errorf("the metrics do not contain %s", series)
		}
		return err
	})
	for _, want := range []string{`kube_ipvs_virtual_servers `, `kube_ipvs_endpoints{state="ready"} `, `kube_ipvs_programming_stage_duration_seconds_count{stage="apply"} `} {
		if !strings.Contains(page.Body, "\n"+want) {
			t.Errorf("the metrics do not contain %s", want)
		}
	}
	if page, err := s.node.HTTPGet("http://127.0.0.1:10249/configz"); err != nil || !strings.Contains(page.Body, `"config.kube-ipvs.io": {`) {
		t.Errorf("/configz: %v, %s", err, page.Body)
	}
}

// With --keep-services, cleanup leaves the virtual servers for kube-proxy, and connections survive.
func keepsServices(t *testing.T, s *stage) {
	open := s.client.Open(t, cluster.TCP, plainIP+":80")
	s.node.MustRun(t, s.binary, "cleanup", "--keep-services")
	open.MustPing(t)
	s.client.Get(t, cluster.TCP, plainIP+":80")
	if sets := s.node.MustRun(t, "ipset", "list", "-n"); strings.Contains(sets, "KIPVS-") {
		t.Errorf("leftover kube-ipvs sets:\n%s", sets)
	}
	if rules := s.node.MustRun(t, "iptables-save"); strings.Contains(rules, "kube-ipvs:") {
		t.Errorf("leftover kube-ipvs rules:\n%s", rules)
	}
	if servers, err := s.node.VirtualServers(); err != nil || len(servers) < services {
		t.Errorf("virtual servers %v, %v", servers, err)
	}
}

// Without an agent, passing a Service name is an error.
func withoutAgent(t *testing.T, s *stage) {
	list := runJSON[inspect.ServiceList](t, s, "services")
	if list.Agent || len(list.Unknown) == 0 || len(list.Items) != 1 || len(list.Items[0].Frontends) < services {
		t.Errorf("services %+v", list)
	}
	status := runJSON[inspect.Status](t, s, "status")
	if status.Agent || status.View != nil || status.Machine.Owned != len(list.Items[0].Frontends) {
		t.Errorf("without an agent, status is %+v and services lists %d virtual servers", status, len(list.Items[0].Frontends))
	}
	path := runJSON[explanations](t, s, "explain", plainIP+":80", "--from", s.outside.V4.String()).Items[0]
	if path.Verdict != explain.Passes || len(path.Endpoints) != 3 || path.Service != "" {
		t.Errorf("path %+v", path)
	}
	if out, err := s.node.Run(s.binary, "services", "default/plain", "--status-socket", s.socket); err == nil || !strings.Contains(err.Error(), "only the agent knows") {
		t.Errorf("services with a Service name: want an error, got %v, %q", err, out)
	}
}
