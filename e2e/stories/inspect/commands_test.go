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

// TestCommands asks while connections are open, and again after the agent has ended.
func TestCommands(t *testing.T) {
	s := newStage(t)
	t.Run("with the agent", func(t *testing.T) { withAgent(t, s) })
	if err := s.agent.Stop(patience); err != nil {
		t.Fatal(err)
	}
	t.Run("without it", func(t *testing.T) { withoutAgent(t, s) })
	t.Run("cleanup --keep-services", func(t *testing.T) { keepsServices(t, s) })
}

func withAgent(t *testing.T, s *stage) {
	conns := []*cluster.Conn{
		s.client.Open(t, cluster.TCP, plainIP+":80"), s.client.Open(t, cluster.TCP, plainIP+":80"), s.outside.Open(t, cluster.TCP, plainIP+":80"),
	}
	for _, c := range conns {
		c.MustPing(t)
	}
	list := ask[inspect.ServiceList](t, s, "services", "default/plain")
	front := list.Items[0].Frontends[0]
	if !list.Agent || front.Connections == nil || front.Connections.Active != 3 || front.State != view.Served {
		t.Errorf("services with 3 open connections: %+v", front)
	}
	for _, e := range front.Endpoints {
		if e.State != view.Ready || e.Connections.Active != 1 || e.Pod == "" || e.Node == "" {
			t.Errorf("endpoint %+v, want it ready with one connection, pod and node", e)
		}
	}
	listed := ask[inspect.ConnectionList](t, s, "conns", "default/plain")
	if len(listed.Items) != 3 || listed.Items[0].Name != "plain" || listed.Items[0].Pod == "" || listed.Items[0].State != "ESTABLISHED" {
		t.Errorf("connections %+v", listed.Items)
	}
	status := ask[inspect.Status](t, s, "status")
	if !status.Agent || status.View.Node.Name != s.node.Name ||
		status.View.Totals.Services != services || status.Machine.Owned < services || status.Machine.Connections.Active != 3 {
		t.Errorf("status %+v", status)
	}
	followed(t, s, conns[0])
	scraped(t, s)
	for _, c := range conns {
		c.Close()
	}
}

// followed asks about a connection by its client's port: its endpoint is the one that answers, not any.
func followed(t *testing.T, s *stage, c *cluster.Conn) {
	way := ask[explanations](t, s, "explain", plainIP+":80", "--from", c.Local.String()).Items[0]
	if way.Verdict != explain.Passes || way.Connection != c.Local.String() || len(way.Endpoints) != 1 || way.Endpoints[0].Pod != "default/"+c.Server {
		t.Errorf("the way of %s: %+v", c, way)
	}
	if fresh := ask[explanations](t, s, "explain", plainIP+":80", "--from", s.client.V4.String()).Items[0]; len(fresh.Endpoints) != 3 {
		t.Errorf("the way of a new connection: %+v", fresh)
	}
}

// scraped wants the connections in the metrics, with the Service's name, and the settings in force where Kubernetes components have
// them.
func scraped(t *testing.T, s *stage) {
	var page cluster.Page
	const series = `kube_ipvs_service_connections_total{protocol="tcp",service_name="plain",service_namespace="default",service_port="http"} 3`
	cluster.Eventually(t, patience, "connections are counted", func() (err error) { // the kernel adds them up every two seconds
		if page, err = s.node.HTTPGet("http://127.0.0.1:10249/metrics"); err == nil && !strings.Contains(page.Body, series) {
			err = fmt.Errorf("the metrics have no %s", series)
		}
		return err
	})
	for _, want := range []string{`kube_ipvs_virtual_servers `, `kube_ipvs_endpoints{state="ready"} `, `kube_ipvs_programming_stage_duration_seconds_count{stage="apply"} `} {
		if !strings.Contains(page.Body, "\n"+want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if page, err := s.node.HTTPGet("http://127.0.0.1:10249/configz"); err != nil || !strings.Contains(page.Body, `"config.kube-ipvs.io": {`) {
		t.Errorf("/configz: %v, %s", err, page.Body)
	}
}

// keepsServices: what serves stays, so that kube-proxy can go on with it; connections notice nothing.
func keepsServices(t *testing.T, s *stage) {
	open := s.client.Open(t, cluster.TCP, plainIP+":80")
	s.node.MustRun(t, s.binary, "cleanup", "--keep-services")
	open.MustPing(t)
	s.client.Get(t, cluster.TCP, plainIP+":80")
	if sets := s.node.MustRun(t, "ipset", "list", "-n"); strings.Contains(sets, "KIPVS-") {
		t.Errorf("sets of ours are left:\n%s", sets)
	}
	if rules := s.node.MustRun(t, "iptables-save"); strings.Contains(rules, "kube-ipvs:") {
		t.Errorf("rules of ours are left:\n%s", rules)
	}
	if servers, err := s.node.VirtualServers(); err != nil || len(servers) < services {
		t.Errorf("virtual servers %v, %v", servers, err)
	}
}

// withoutAgent: the kernel tells its part, and names of Services are an error.
func withoutAgent(t *testing.T, s *stage) {
	list := ask[inspect.ServiceList](t, s, "services")
	if list.Agent || len(list.Unknown) == 0 || len(list.Items) != 1 || len(list.Items[0].Frontends) < services {
		t.Errorf("services %+v", list)
	}
	status := ask[inspect.Status](t, s, "status")
	if status.Agent || status.View != nil || status.Machine.Owned != len(list.Items[0].Frontends) {
		t.Errorf("status %+v, and %d virtual servers", status, len(list.Items[0].Frontends))
	}
	way := ask[explanations](t, s, "explain", plainIP+":80", "--from", s.outside.V4.String()).Items[0]
	if way.Verdict != explain.Passes || len(way.Endpoints) != 3 || way.Service != "" {
		t.Errorf("the way %+v", way)
	}
	if out, err := s.node.Run(s.binary, "services", "default/plain", "--status-socket", s.socket); err == nil || !strings.Contains(err.Error(), "only the agent knows") {
		t.Errorf("a Service by name: %v, %q", err, out)
	}
}
