package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const datagrams = `apiVersion: v1
kind: Service
metadata: {name: datagrams, namespace: default}
spec:
  clusterIP: 10.96.0.20
  ports: [{name: udp, port: 53, protocol: UDP}, {name: sctp, port: 80, protocol: SCTP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: datagrams-1, namespace: default, labels: {kubernetes.io/service-name: datagrams}}
addressType: IPv4
ports: [{name: udp, port: 8080, protocol: UDP}, {name: sctp, port: 8080, protocol: SCTP}]
endpoints: [{addresses: [%q], nodeName: %s, targetRef: {kind: Pod, namespace: default, name: here}}]
`

// TestTrackedConnections: where nftables balances, the commands show the connections that conntrack translates.
func TestTrackedConnections(t *testing.T) {
	s := newStage(t, "--data-plane=nftables")
	s.here.Serve(t, cluster.UDP, 8080)
	s.here.Serve(t, cluster.SCTP, 8080)
	s.apply(t, "datagrams.yaml", fmt.Sprintf(datagrams, s.here.V4, s.node.Name))
	s.client.Await(t, patience, cluster.UDP, "10.96.0.20:53")
	s.node.MustRun(t, "conntrack", "-D", "-p", "udp")
	opened := []*cluster.Conn{
		s.client.Open(t, cluster.TCP, plainIP+":80"), s.client.Open(t, cluster.TCP, plainIP+":80"),
		s.outside.Open(t, cluster.TCP, plainIP+":80"), // masqueraded
		s.client.Open(t, cluster.TCP, "["+plain6IP+"]:80"), s.client.Open(t, cluster.TCP, stickyIP+":80"),
		s.client.Open(t, cluster.UDP, "10.96.0.20:53"), s.client.Open(t, cluster.SCTP, "10.96.0.20:80"),
	}
	for _, c := range opened {
		c.MustPing(t)
	}
	s.client.Open(t, cluster.TCP, s.here.At(cluster.V4, 8080)).MustPing(t) // not through a Service
	t.Run("conns", func(t *testing.T) { listsTracked(t, s, opened) })
	t.Run("services", func(t *testing.T) { countsTracked(t, s, opened[:3]) })
	t.Run("explain", func(t *testing.T) { explainsAffinity(t, s, opened[4]) })
	t.Run("ipvsadm", func(t *testing.T) { saysWhyEmpty(t, s) })
	t.Run("bundle", func(t *testing.T) { bundlesTracked(t, s) })
}

func listsTracked(t *testing.T, s *stage, opened []*cluster.Conn) {
	listed := runJSON[inspect.ConnectionList](t, s, "conns").Items
	for _, c := range opened {
		i := slices.IndexFunc(listed, func(l inspect.Connection) bool { return l.Client == c.Local })
		want := map[cluster.Protocol]string{cluster.TCP: "ESTABLISHED", cluster.UDP: "REPLIED", cluster.SCTP: "ESTABLISHED"}[c.Proto]
		if i < 0 || listed[i].Pod != "default/"+c.Server || listed[i].State != want || listed[i].Affinity || listed[i].Expires == 0 {
			t.Errorf("%s %s: index %d of %+v", c.Proto, c, i, listed)
		}
	}
	i := slices.IndexFunc(listed, func(l inspect.Connection) bool { return l.Affinity })
	if len(listed) != len(opened)+1 || i < 0 || listed[i].Name != "sticky" || listed[i].Client.Addr() != s.client.V4 || listed[i].Pod != "default/"+opened[4].Server {
		t.Errorf("want %d connections and one affinity record: %+v", len(opened), listed)
	}
	if plain := runJSON[inspect.ConnectionList](t, s, "conns", "default/plain").Items; len(plain) != 3 {
		t.Errorf("connections of one Service: %+v", plain)
	}
}

func countsTracked(t *testing.T, s *stage, opened []*cluster.Conn) {
	countsActive(t, runJSON[inspect.ServiceList](t, s, "services", "default/plain").Items[0].Frontends[0], opened)
	udp := runJSON[inspect.ServiceList](t, s, "services", "default/datagrams").Items[0].Frontends
	for _, f := range udp {
		if active := map[string]uint64{"sctp": 1}[f.Port]; f.Connections == nil || f.Connections.Active != active || f.Connections.Inactive != 1-active {
			t.Errorf("port %s has %+v", f.Port, f.Connections)
		}
	}
	if m := runJSON[inspect.Status](t, s, "status").Machine; m.Connections == nil || m.Connections.Active != 6 || m.Connections.Inactive != 1 {
		t.Errorf("status counts %+v", m.Connections)
	}
}

// countsActive requires that services counts only the opened connections.
func countsActive(t *testing.T, frontend view.Frontend, opened []*cluster.Conn) {
	t.Helper()
	want := map[string]uint64{}
	for _, c := range opened {
		want["default/"+c.Server]++
	}
	for _, e := range frontend.Endpoints {
		if e.Connections == nil || e.Connections.Active != want[e.Pod] || e.Connections.Inactive != 0 {
			t.Errorf("endpoint %+v has %+v, want %d active", e, e.Connections, want[e.Pod])
		}
	}
}

func explainsAffinity(t *testing.T, s *stage, c *cluster.Conn) {
	path := runJSON[explanations](t, s, "explain", stickyIP+":80", "--from", s.client.V4.String()).Items[0]
	if step := affinityStep(path); len(path.Endpoints) != 1 || path.Endpoints[0].Pod != "default/"+c.Server || step.Message != "the client keeps this endpoint" ||
		!strings.Contains(step.Object, "clients4."+stickyIP+".tcp.80: "+s.client.V4.String()+"/32 : ") || !strings.HasSuffix(step.Object, " s left") {
		t.Errorf("the client of %s: %+v", c, path)
	}
	path = runJSON[explanations](t, s, "explain", stickyIP+":80", "--from", s.outside.V4.String()).Items[0]
	if step := affinityStep(path); len(path.Endpoints) != 3 || !strings.Contains(step.Message, "no record for") || !strings.Contains(step.Message, "at random") {
		t.Errorf("another client: %+v", path)
	}
}

func affinityStep(path explain.Explanation) explain.Step {
	i := slices.IndexFunc(path.Steps, func(s explain.Step) bool { return s.At == "affinity" })
	if i < 0 {
		return explain.Step{}
	}
	return path.Steps[i]
}

func saysWhyEmpty(t *testing.T, s *stage) {
	for _, options := range []string{"-Ln", "-Lnc", "-Sn", "-Ln --stats"} {
		said, _ := s.node.Run("sh", "-c", s.binary+" ipvsadm "+options+" 2>&1 >/dev/null")
		if !strings.Contains(said, "nftables balances connections on this node") || !strings.Contains(said, "`kube-ipvs conns`") {
			t.Errorf("ipvsadm %s writes %q to stderr", options, said)
		}
		if out, _ := s.node.Run("sh", "-c", s.binary+" ipvsadm "+options+" 2>/dev/null"); strings.Contains(out, "nftables") {
			t.Errorf("ipvsadm %s writes the note to stdout: %q", options, out)
		}
	}
}

func bundlesTracked(t *testing.T, s *stage) {
	counts, err := s.node.Run("sh", "-c", s.binary+" bundle - --status-socket "+s.socket+" | tar -xzO --wildcards '*/kernel/connections.txt'")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--sctp-service 10.96.0.20:80: 1 active, 0 inactive", "tcp ESTABLISHED: 5", "udp REPLIED: 1", "sctp ESTABLISHED: 1"} {
		if !strings.Contains(counts, want+"\n") {
			t.Errorf("the bundle lacks %q: %s", want, counts)
		}
	}
}
