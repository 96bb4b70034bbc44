package inspect

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/cluster"
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
}

func withAgent(t *testing.T, s *stage) {
	conns := []*cluster.Conn{
		s.client.Open(t, cluster.TCP, plainIP+":80"), s.client.Open(t, cluster.TCP, plainIP+":80"), s.outside.Open(t, cluster.TCP, plainIP+":80"),
	}
	for _, c := range conns {
		c.MustPing(t)
	}
	list := ask[inspect.ServiceList](t, s, "services", "default/plain")
	front := list.Items[0].Fronts[0]
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
	if !status.Agent || status.View.Node.Name != s.node.Name || status.View.Totals.Services != 7 || status.Machine.Recorded < 7 || status.Machine.Connections.Active != 3 {
		t.Errorf("status %+v", status)
	}
	for _, c := range conns {
		c.Close()
	}
}

// withoutAgent: the kernel tells its part, and names of Services are an error.
func withoutAgent(t *testing.T, s *stage) {
	list := ask[inspect.ServiceList](t, s, "services")
	if list.Agent || len(list.Unknown) == 0 || len(list.Items) != 1 || len(list.Items[0].Fronts) < 7 {
		t.Errorf("services %+v", list)
	}
	status := ask[inspect.Status](t, s, "status")
	if status.Agent || status.View != nil || status.Machine.Recorded != len(list.Items[0].Fronts) {
		t.Errorf("status %+v, and %d virtual servers", status, len(list.Items[0].Fronts))
	}
	way := ask[explanations](t, s, "explain", plainIP+":80", "--from", s.outside.V4.String()).Items[0]
	if way.Verdict != explain.Passes || len(way.Endpoints) != 3 || way.Service != "" {
		t.Errorf("the way %+v", way)
	}
	if out, err := s.node.Run(s.binary, "services", "default/plain", "--status-socket", s.socket); err == nil || !strings.Contains(err.Error(), "known to the agent only") {
		t.Errorf("a Service by name: %v, %q", err, out)
	}
}
