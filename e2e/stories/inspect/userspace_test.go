package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

// TestForwardedConnections: beside an agent in user space, the commands show what only its process knows, or say which
// command shows it.
func TestForwardedConnections(t *testing.T) {
	s := newStage(t, "--data-plane=userspace", "--forward-addresses=services")
	s.here.Serve(t, cluster.UDP, 8080)
	s.apply(t, "datagrams.yaml", fmt.Sprintf(datagrams, s.here.V4, s.node.Name))
	s.outside.Await(t, patience, cluster.UDP, "10.96.0.20:53")
	opened := []*cluster.Conn{
		s.client.Open(t, cluster.TCP, plainIP+":80"), s.client.Open(t, cluster.TCP, plainIP+":80"), s.outside.Open(t, cluster.TCP, plainIP+":80"),
		s.client.Open(t, cluster.TCP, "["+plain6IP+"]:80"), s.client.Open(t, cluster.TCP, stickyIP+":80"), s.client.Open(t, cluster.UDP, "10.96.0.20:53"),
	}
	for _, c := range opened {
		c.MustPing(t)
	}
	t.Run("conns", func(t *testing.T) { listsForwarded(t, s, opened) })
	t.Run("services", func(t *testing.T) { countsForwarded(t, s, opened[:3]) })
	t.Run("top", func(t *testing.T) { topForwarded(t, s) })
	t.Run("metrics", func(t *testing.T) { checkMetrics(t, s) })
	t.Run("bundle", func(t *testing.T) {
		counts, err := s.node.Run("sh", "-c", s.binary+" bundle - --status-socket "+s.socket+" | tar -xzO --wildcards '*/kernel/connections.txt'")
		if err != nil || !strings.Contains(counts, "-t 10.96.0.10:80: 3 active, 0 inactive\n") || !strings.Contains(counts, "TCP ESTABLISHED: 5\n") {
			t.Errorf("%v\n%s", err, counts)
		}
	})
	t.Run("commands without an answer", func(t *testing.T) { saysWhat(t, s) })
	t.Run("no agent responds", func(t *testing.T) {
		for _, command := range []string{"conns", "services", "top --batch --iterations 1"} {
			out, err := s.node.Run("sh", "-c", s.binary+" "+command+" --status-socket "+s.socket+".gone")
			if !strings.Contains(fmt.Sprint(err), "only the agent knows its connections") || out != "" {
				t.Errorf("%s: %v\n%s", command, err, out)
			}
		}
	})
}

func listsForwarded(t *testing.T, s *stage, opened []*cluster.Conn) {
	listed := runJSON[inspect.ConnectionList](t, s, "conns").Items
	for _, c := range opened {
		i := slices.IndexFunc(listed, func(l inspect.Connection) bool { return l.Client == c.Local })
		want := map[cluster.Protocol]string{cluster.TCP: "ESTABLISHED", cluster.UDP: "UDP"}[c.Proto]
		if i < 0 || listed[i].Pod != "default/"+c.Server || listed[i].State != want || listed[i].Affinity || (listed[i].Expires > 0) != (c.Proto == cluster.UDP) {
			t.Errorf("%s %s: index %d of %+v", c.Proto, c, i, listed)
		}
	}
	sticky := slices.DeleteFunc(slices.Clone(listed), func(l inspect.Connection) bool { return !l.Affinity })
	if len(sticky) != 1 || sticky[0].Name != "sticky" || sticky[0].Client.Addr() != s.client.V4 || sticky[0].Pod != "default/"+opened[4].Server || sticky[0].Expires == 0 {
		t.Errorf("affinity: %+v", sticky)
	}
	if plain := runJSON[inspect.ConnectionList](t, s, "conns", "default/plain").Items; len(plain) != 3 {
		t.Errorf("connections of one Service: %+v", plain)
	}
}

func countsForwarded(t *testing.T, s *stage, opened []*cluster.Conn) {
	list := runJSON[inspect.ServiceList](t, s, "services", "default/plain")
	frontend := list.Items[0].Frontends[0]
	countsActive(t, frontend, opened)
	if frontend.Scheduler != "wrr" || len(list.Unknown) > 0 {
		t.Errorf("scheduler %s; unknown: %v", frontend.Scheduler, list.Unknown)
	}
	m := runJSON[inspect.Status](t, s, "status").Machine
	if m.Connections == nil || m.Connections.Active != 5 || m.Connections.Inactive < 1 || m.Error != "" || m.Owned < services || m.Foreign > 0 {
		t.Errorf("status counts %+v: %+v", m, m.Connections)
	}
}

func topForwarded(t *testing.T, s *stage) {
	top := runJSON[inspect.TopList](t, s, "top", "default/plain", "--interval", "100ms")
	if len(top.Items) != 1 || top.Items[0].Active != 3 || len(top.Items[0].Endpoints) != 3 || len(top.Unknown) > 0 {
		t.Errorf("%+v", top)
	}
}

// saysWhat: these commands have nothing to read, and name those that have.
func saysWhat(t *testing.T, s *stage) {
	for command, instead := range map[string]string{
		"explain default/plain --status-socket " + s.socket: "kube-ipvs conns",
		"plan --manifests " + s.manifests:                   "kube-ipvs status",
		"flows --status-socket " + s.socket:                 "kube-ipvs conns",
		"ipvsadm -Ln":                                       "kube-ipvs conns",
	} {
		said, _ := s.node.Run("sh", "-c", s.binary+" "+command+" 2>&1 >/dev/null")
		if !strings.Contains(said, "belongs to an agent in user space") || !strings.Contains(said, "`"+instead+"`") {
			t.Errorf("%s: %s", command, said)
		}
	}
}
