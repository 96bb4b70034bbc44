package services

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// processStage is a node whose Services are served by the agent's process, at their addresses. A daemon on the node
// listens at all addresses.
type processStage struct {
	*cluster.Cluster
	node        *cluster.Node
	client, web *cluster.Pod
	dir, config string
	services    manifest.Maker
	agent       *cluster.Process
}

var daemonPort = port{Protocol: cluster.TCP, Number: 9999, Target: 8080}

// TestInProcess: what only an agent with --data-plane=userspace and --forward-addresses=services does. With
// DATA_PLANE=userspace, the other stories prove what it has in common with the other data planes.
func TestInProcess(t *testing.T) {
	labtest.Need(t)
	c := cluster.New(t, cluster.Config{Name: "process", Nodes: 2, Clients: -1})
	s := &processStage{Cluster: c, node: c.Nodes[0], dir: t.TempDir(), config: filepath.Join(t.TempDir(), "config.yaml"),
		services: manifest.Maker{Cluster: c, Ports: "ports: [{name: http, port: 80, targetPort: 8080}]"}}
	s.client, s.web = s.node.Pod(t, "client"), s.node.Pod(t, "web-1")
	for _, pod := range []*cluster.Pod{s.web, c.Nodes[1].Pod(t, "web-2")} {
		pod.Serve(t, cluster.TCP, http.Target)
	}
	s.node.Serve(t, cluster.TCP, daemonPort.Number, cluster.As("daemon"))
	writeManifests(t, s.dir, "# none yet")
	s.configure(t, "clusterCIDR: "+podCIDRs)
	s.start(t)
	t.Run("a daemon has the port", s.busyPort)
	t.Run("weights", s.weights)
	t.Run("half-close", s.halfClose)
	t.Run("changed settings", s.reload)
	t.Run("an endpoint that refuses connections", s.deadEndpoint)
	t.Run("SCTP", s.sctp)
	t.Run("damage is repaired", s.repair)
	t.Run("kill -9", s.kill)
	t.Run("commands", s.commands)
	t.Run("stop", s.stop)
	t.Run("another data plane is active", s.occupied)
}

func (s *processStage) command(t *testing.T) []string {
	return append([]string{"env", "KUBE_IPVS_DATA_PLANE=userspace"},
		onManifests(t, s.node, "run", s.dir, "--config", s.config, "--data-plane=userspace", "--forward-addresses=services")...)
}

// configure replaces the configuration file.
func (s *processStage) configure(t *testing.T, settings string) {
	t.Helper()
	text := "apiVersion: config.kube-ipvs.io/v1alpha1\nkind: Configuration\n" + settings + "\n"
	if err := errors.Join(os.WriteFile(s.config+".new", []byte(text), 0o600), os.Rename(s.config+".new", s.config)); err != nil {
		t.Fatal(err)
	}
}

func (s *processStage) start(t *testing.T) {
	t.Helper()
	s.agent = s.node.MustStart(t, s.command(t)...)
	s.agent.AwaitLog(t, patience, "initial sync complete")
}

// serve replaces all Services.
func (s *processStage) serve(t *testing.T, yaml string) service {
	t.Helper()
	svc := s.services.Service(yaml)
	writeManifests(t, s.dir, svc.YAML())
	return svc
}

// busyPort: a daemon at all of the node's addresses does not keep a Service from using its port.
func (s *processStage) busyPort(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: busy}
spec: {ports: [{name: http, port: 9999, targetPort: 8080}]}
---
endpoints: [{addresses: [web-1]}]`)
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, daemonPort, svc.At(f, daemonPort), "web-1", s.node.Addr(f))
		if got := s.client.Get(t, cluster.TCP, s.node.At(f, daemonPort.Number)); got.Server != "daemon" {
			t.Errorf("the daemon does not answer at the node's address: %v", got)
		}
	}
}

func (s *processStage) weights(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: weighted, annotations: {kube-ipvs.io/weight-by-node: "node-1=3,node-2=1"}}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	s.client.Await(t, patience, cluster.TCP, svc.At(cluster.V4, http))
	if got := s.client.Spread(t, 12, cluster.TCP, svc.At(cluster.V4, http)); got["web-1"] != 9 || got["web-2"] != 3 {
		t.Errorf("answers %v", got)
	}
}

// halfClose: a client that has sent everything closes its direction, and then receives the whole reply.
func (s *processStage) halfClose(t *testing.T) {
	const size = 1 << 20
	var listener net.Listener
	if err := s.web.Do(func() (err error) { listener, err = net.Listen("tcp", ":7000"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			request, _ := io.ReadAll(c)
			_, _ = c.Write(request)
			_ = c.Close()
		}
	}()
	svc := s.serve(t, `
metadata: {name: echo}
spec: {ports: [{name: http, port: 80, targetPort: 7000}]}
---
endpoints: [{addresses: [web-1]}]`)
	cluster.Eventually(t, patience, "the reply to a half-closed connection is complete", func() error {
		var c net.Conn
		if err := s.client.Do(func() (err error) { c, err = net.Dial("tcp", svc.At(cluster.V4, http)); return err }); err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, sent := c.Write(make([]byte, size))
		reply, err := []byte(nil), errors.Join(sent, c.(*net.TCPConn).CloseWrite())
		if err == nil {
			reply, err = io.ReadAll(c)
		}
		if err == nil && len(reply) != size {
			err = fmt.Errorf("%d bytes", len(reply))
		}
		return err
	})
}

// reload: changed settings apply without a restart.
func (s *processStage) reload(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: inside}
spec: {type: NodePort, externalTrafficPolicy: Local}
---
endpoints: [{addresses: [web-2]}]`)
	for _, step := range []struct {
		settings     string
		node, client cluster.Outcome
	}{
		{"clusterCIDR: " + podCIDRs, cluster.Answered, cluster.Answered},
		{"clusterCIDR: 10.99.0.0/16,fd00:99::/64", cluster.Answered, cluster.Reset},
		{"clusterCIDR: " + podCIDRs + "\nnodePortAddresses: [192.0.2.0/24, \"2001:db8:99::/64\"]", cluster.Refused, cluster.Refused},
		{"clusterCIDR: " + podCIDRs, cluster.Answered, cluster.Answered},
	} {
		s.configure(t, step.settings)
		for _, f := range s.FamilyList() {
			becomes(t, s.node.Host, http, svc.AtNode(s.node, f), step.node)
			becomes(t, s.client.Host, http, svc.AtNode(s.node, f), step.client)
		}
	}
}

func (s *processStage) deadEndpoint(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: half}
---
endpoints: [{addresses: [web-1]}, {addresses: [client]}]`) // the client listens at no port
	s.node.Await(t, patience, cluster.TCP, svc.At(cluster.V4, http))
	if got := s.node.Spread(t, 10, cluster.TCP, svc.At(cluster.V4, http)); got["web-1"] != 10 {
		t.Errorf("answers %v", got)
	}
}

// sctp: a port that cannot be served is a Problem of its Service, whose other ports work.
func (s *processStage) sctp(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: mixed}
spec: {ports: [{name: http, port: 80, targetPort: 8080}, {name: diameter, protocol: SCTP, port: 80, targetPort: 3868}]}
---
endpoints: [{addresses: [web-1]}]`)
	reach(t, s.client.Host, http, svc.At(cluster.V4, http), "web-1", s.node.V4)
	status, err := s.node.Run(cluster.AgentBinary(t), "status", "--status-socket", s.node.StatusSocket())
	if err != nil || !strings.Contains(status, "cannot forward SCTP") {
		t.Errorf("status: %v\n%s", err, status)
	}
}

func (s *processStage) repair(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: web}
---
endpoints: [{addresses: [web-1]}]`)
	reach(t, s.client.Host, http, svc.At(cluster.V4, http), "web-1", s.node.V4)
	for _, damage := range []string{
		"ip route flush dev kube-ipvs0 proto 117", "ip link set kube-ipvs0 down", "ip link del kube-ipvs0",
		"ip link del kube-ipvs0 && ip link add kube-ipvs0 type veth peer name other && ip link set kube-ipvs0 alias 'kube-ipvs userspace' up",
	} {
		s.node.MustRun(t, "sh", "-c", damage)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, svc.At(f, http), "web-1", s.node.Addr(f))
		}
	}
}

// kill: an open connection may keep what a killed agent leaves. The next agent replaces it.
func (s *processStage) kill(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: web}
---
endpoints: [{addresses: [web-1]}]`)
	for range 3 {
		s.client.Await(t, patience, cluster.TCP, svc.At(cluster.V4, http))
		s.client.OpenFlows(t, 5, cluster.TCP, svc.At(cluster.V4, http), cluster.FlowConfig{})
		if err := s.agent.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, ended := s.agent.Wait(patience); !ended {
			t.Fatal("the killed agent has not ended")
		}
		s.start(t)
		for _, f := range s.FamilyList() {
			reach(t, s.client.Host, http, svc.At(f, http), "web-1", s.node.Addr(f))
		}
	}
}

func (s *processStage) commands(t *testing.T) {
	status, _ := s.node.Run(cluster.AgentBinary(t), "status", "--status-socket", s.node.StatusSocket()) // its exit status tells that there are problems
	if !regexp.MustCompile(`data plane +userspace `).MatchString(status) {
		t.Errorf("status is\n%s", status)
	}
	services, _ := s.node.Run(cluster.AgentBinary(t), "services", "--status-socket", s.node.StatusSocket())
	if !regexp.MustCompile(`web +http +ClusterIP .* Served`).MatchString(services) {
		t.Errorf("services is\n%s", services)
	}
	_, err := s.node.Run(cluster.AgentBinary(t), "explain", "--status-socket", s.node.StatusSocket(), "default/web")
	if !strings.Contains(fmt.Sprint(err), "belongs to an agent in user space") {
		t.Errorf("explain: %v", err)
	}
	metrics := s.node.MustRun(t, "curl", "-s", "http://127.0.0.1:10249/metrics")
	if !strings.Contains(metrics, `kube_ipvs_data_plane{data_plane="userspace"} 1`) {
		t.Errorf("metrics lack the data plane: %s", regexp.MustCompile("(?m)^kube_ipvs_data_plane.*").FindString(metrics))
	}
}

func (s *processStage) stop(t *testing.T) {
	mustStop(t, s.agent)
	s.leavesNothing(t)
	// What only a kill leaves.
	s.node.MustRun(t, "sh", "-c", "ip link add kube-ipvs0 type veth peer name other && ip link set kube-ipvs0 alias 'kube-ipvs userspace'")
	s.node.MustRun(t, cluster.AgentBinary(t), "cleanup", "--dry-run")
	s.node.MustRun(t, "ip", "link", "show", "kube-ipvs0")
	s.node.MustRun(t, cluster.AgentBinary(t), "cleanup")
	s.leavesNothing(t)
}

func (s *processStage) leavesNothing(t *testing.T) {
	t.Helper()
	if left := s.node.MustRun(t, "sh", "-c", "ip -o link; ip route; ip -6 route; ip route show proto 117"); strings.Contains(left, "kube-ipvs") {
		t.Errorf("left:\n%s", left)
	}
}

func (s *processStage) occupied(t *testing.T) {
	s.node.MustRun(t, "ip", "link", "add", "kube-ipvs0", "type", "dummy")
	if _, err := s.node.Run(s.command(t)...); !strings.Contains(fmt.Sprint(err), "kube-ipvs cleanup") {
		t.Errorf("the agent started beside another data plane: %v", err)
	}
	s.node.MustRun(t, "ip", "link", "show", "type", "dummy", "dev", "kube-ipvs0")
}
