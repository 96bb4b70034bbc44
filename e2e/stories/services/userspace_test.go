package services

import (
	"fmt"
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
	node                  *cluster.Node
	client, farClient     *cluster.Pod // farClient is on another node
	outside, otherOutside *cluster.Host
	dir, socket           string
	services              manifest.Maker
	agent                 *cluster.Process
}

var daemonPort = port{Protocol: cluster.TCP, Number: 9999, Target: 8080}

// TestInProcess: with --data-plane=userspace and --forward-addresses=services, the agent's process serves every kind of
// address on the node.
func TestInProcess(t *testing.T) {
	labtest.Need(t)
	c := cluster.New(t, cluster.Config{Name: "process", Nodes: 2, Clients: 2})
	s := &processStage{Cluster: c, node: c.Nodes[0], outside: c.Clients[0], otherOutside: c.Clients[1], dir: t.TempDir(),
		socket: filepath.Join(t.TempDir(), "agent.sock"), services: manifest.Maker{Cluster: c, Ports: `ports:
- {name: http, port: 80, targetPort: 8080}
- {name: dns, protocol: UDP, port: 80, targetPort: 5353}`}}
	s.client, s.farClient = s.node.Pod(t, "client"), c.Nodes[1].Pod(t, "far-client")
	for name, node := range map[string]*cluster.Node{"web-1": s.node, "web-2": c.Nodes[1]} {
		pod := node.Pod(t, name)
		pod.Serve(t, cluster.TCP, http.Target)
		pod.Serve(t, cluster.UDP, dns.Target)
	}
	for _, r := range []string{s.Service.V4.String(), s.Service.V6.String(), balancers[cluster.V4].String(), balancers[cluster.V6].String()} {
		if err := s.AddRouteVia(r, s.node); err != nil {
			t.Fatal(err)
		}
	}
	s.node.Serve(t, cluster.TCP, daemonPort.Number, cluster.As("daemon"))
	writeManifests(t, s.dir, "# none yet")
	s.start(t)
	t.Run("addresses", s.addresses)
	t.Run("unserved ports", s.unserved)
	t.Run("traffic policies", s.policies)
	t.Run("source ranges", s.sourceRanges)
	t.Run("affinity", s.affinity)
	t.Run("an endpoint that refuses connections", s.deadEndpoint)
	t.Run("SCTP", s.sctp)
	t.Run("damage is repaired", s.repair)
	t.Run("kill -9", s.kill)
	t.Run("commands", s.commands)
	t.Run("stop", s.stop)
	t.Run("another data plane is active", s.occupied)
}

func (s *processStage) command(t *testing.T, flags ...string) []string {
	return onManifests(t, s.node, "run", s.dir, append([]string{"--cluster-cidr", podCIDRs, "--status-socket", s.socket}, flags...)...)
}

// inProcess returns a command without the container of other agents, which may not create namespaces.
func (s *processStage) inProcess(t *testing.T) []string {
	command := s.command(t, "--data-plane=userspace", "--forward-addresses=services")
	command[0] = filepath.Join(os.Getenv("KUBE_IPVS_ROOT"), "bin", "kube-ipvs")
	return append([]string{"setpriv", "--bounding-set=-all,+sys_admin,+net_admin,+net_bind_service", "--no-new-privs"}, command...)
}

func (s *processStage) start(t *testing.T) {
	t.Helper()
	s.agent = s.node.MustStart(t, s.inProcess(t)...)
	s.agent.AwaitLog(t, patience, "initial sync complete")
}

// serve replaces all Services.
func (s *processStage) serve(t *testing.T, yaml string) service {
	t.Helper()
	svc := s.services.Service(yaml)
	writeManifests(t, s.dir, svc.YAML())
	return svc
}

func (s *processStage) addresses(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: web}
spec: {type: LoadBalancer, externalIPs: [203.0.113.200, "2001:db8:cb::200"]}
---
endpoints: [{addresses: [web-1]}]`)
	for _, f := range s.FamilyList() {
		sees := s.node.Addr(f)
		for _, p := range []port{http, dns} {
			for _, from := range []*cluster.Host{s.client.Host, s.node.Host, s.farClient.Host} {
				reach(t, from, p, svc.At(f, p), "web-1", sees)
			}
			for _, at := range []string{svc.AtBalancer(f, p), svc.AtExternal(f, p), svc.AtNode(s.node, f)} {
				for _, from := range []*cluster.Host{s.outside, s.client.Host, s.node.Host} {
					reach(t, from, p, at, "web-1", sees)
				}
			}
		}
	}
}

// unserved: the daemon neither answers at a virtual address, nor keeps a Service from using its port there.
func (s *processStage) unserved(t *testing.T) {
	svc := s.serve(t, `
metadata: {name: web}
---
endpoints: [{addresses: [web-1]}]`)
	for _, f := range s.FamilyList() {
		s.client.Await(t, patience, cluster.TCP, svc.At(f, http))
		for _, from := range []*cluster.Host{s.client.Host, s.node.Host, s.farClient.Host} {
			from.MustRefuse(t, cluster.TCP, svc.At(f, daemonPort))
		}
		if got := s.client.Get(t, cluster.TCP, s.node.At(f, daemonPort.Number)); got.Server != "daemon" {
			t.Errorf("the daemon does not answer at the node's address: %v", got)
		}
	}
	s.client.MustRefuse(t, cluster.UDP, svc.At(cluster.V4, port{Protocol: cluster.UDP, Number: 81}))
	busy := s.serve(t, `
metadata: {name: busy}
spec: {ports: [{name: http, port: 9999, targetPort: 8080}]}
---
endpoints: [{addresses: [web-1]}]`)
	for _, f := range s.FamilyList() {
		reach(t, s.client.Host, daemonPort, busy.At(f, daemonPort), "web-1", s.node.Addr(f))
		becomes(t, s.client.Host, http, svc.At(f, http), cluster.Unreachable) // its route is gone
	}
}

func (s *processStage) policies(t *testing.T) {
	for _, c := range []struct {
		name, policies, endpoint string
		inside, outside          bool // whether clients reach the Service: at the ClusterIP, and from outside at other addresses
	}{
		{"Cluster", "{}", "web-2", true, true},
		{"internal Local without endpoint", "{internalTrafficPolicy: Local}", "web-2", false, true},
		{"internal Local", "{internalTrafficPolicy: Local}", "web-1", true, true},
		{"external Local without endpoint", "{externalTrafficPolicy: Local}", "web-2", true, false},
		{"external Local", "{externalTrafficPolicy: Local}", "web-1", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := s.serve(t, fmt.Sprintf(`
metadata: {name: web}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [%s]}]`, c.endpoint)).With("spec: " + c.policies)
			writeManifests(t, s.dir, svc.YAML())
			for _, f := range s.FamilyList() {
				for _, p := range []port{http, dns} {
					for _, from := range []*cluster.Host{s.client.Host, s.farClient.Host, s.node.Host} {
						s.answers(t, from, p, svc.At(f, p), c.inside)
						s.answers(t, from, p, svc.AtBalancer(f, p), true) // pods and the node do not know where endpoints are
						s.answers(t, from, p, svc.AtNode(s.node, f), true)
					}
					s.answers(t, s.outside, p, svc.AtBalancer(f, p), c.outside)
					s.answers(t, s.outside, p, svc.AtNode(s.node, f), c.outside)
				}
			}
		})
	}
}

func (s *processStage) answers(t *testing.T, from *cluster.Host, p port, at string, want bool) {
	t.Helper()
	if want {
		becomes(t, from, p, at, cluster.Answered)
	} else {
		eventuallyUnserved(t, from, p, at)
	}
}

func (s *processStage) sourceRanges(t *testing.T) {
	svc := s.services.Service(`
metadata: {name: ranges}
spec: {type: LoadBalancer}
---
endpoints: [{addresses: [web-1]}]`)
	for _, c := range []struct {
		ranges string
		may    []*cluster.Host
	}{
		{"[client-1, client]", []*cluster.Host{s.outside, s.client.Host}},
		{"[client-2]", []*cluster.Host{s.otherOutside}},
		{"[node-1]", []*cluster.Host{s.node.Host}},
		{"null", []*cluster.Host{s.outside, s.otherOutside, s.client.Host, s.node.Host}},
	} {
		writeManifests(t, s.dir, svc.With("spec: {loadBalancerSourceRanges: "+c.ranges+"}").YAML())
		for _, f := range s.FamilyList() {
			for _, p := range []port{http, dns} {
				for _, from := range []*cluster.Host{s.outside, s.otherOutside, s.client.Host, s.node.Host} {
					may := false
					for _, one := range c.may {
						may = may || one == from
					}
					s.answers(t, from, p, svc.AtBalancer(f, p), may)
				}
			}
		}
	}
}

func (s *processStage) affinity(t *testing.T) {
	both := `
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`
	spread := func(svc service) int {
		s.client.Await(t, patience, cluster.TCP, svc.At(cluster.V4, http))
		return len(s.client.Spread(t, 10, cluster.TCP, svc.At(cluster.V4, http)))
	}
	if n := spread(s.serve(t, `metadata: {name: sticky}
spec: {sessionAffinity: ClientIP}`+both)); n != 1 {
		t.Errorf("a client with affinity reached %d endpoints", n)
	}
	if n := spread(s.serve(t, `metadata: {name: loose}`+both)); n != 2 {
		t.Errorf("a client without affinity reached %d endpoints", n)
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
	status, err := s.node.Run(cluster.AgentBinary(t), "status", "--status-socket", s.socket)
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
	status, _ := s.node.Run(cluster.AgentBinary(t), "status", "--status-socket", s.socket) // its exit status tells that there are problems
	if !regexp.MustCompile(`data plane +userspace `).MatchString(status) {
		t.Errorf("status is\n%s", status)
	}
	services, _ := s.node.Run(cluster.AgentBinary(t), "services", "--status-socket", s.socket)
	if !regexp.MustCompile(`web +http +ClusterIP .* Served`).MatchString(services) {
		t.Errorf("services is\n%s", services)
	}
	_, err := s.node.Run(cluster.AgentBinary(t), "explain", "--status-socket", s.socket, "default/web")
	if !strings.Contains(fmt.Sprint(err), "the agent's process forwards connections") {
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
	if _, err := s.node.Run(s.inProcess(t)...); !strings.Contains(fmt.Sprint(err), "kube-ipvs cleanup") {
		t.Errorf("the agent started beside another data plane: %v", err)
	}
	s.node.MustRun(t, "ip", "link", "show", "type", "dummy", "dev", "kube-ipvs0")
}
