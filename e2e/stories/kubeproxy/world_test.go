package kubeproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

const (
	// patience bounds every wait for a program. kube-proxy starts a process for every entry of a set, each of which takes an
	// emulated machine a tenth of a second.
	patience = 8 * time.Minute
	podCIDRs = "10.244.0.0/16,fd00:10:244::/48"
	// daemonPort is served by a daemon of every node, on every address.
	daemonPort = 2222
)

// slowly is how long an answer may take, and how long silence is listened to.
var slowly = cluster.Within(5 * time.Second)

// side is one of the two programs, and those who use its node.
type side struct {
	name    string
	node    *cluster.Node
	pod     *cluster.Pod  // on the node
	outside *cluster.Host // whose packets for Services the router sends to the node
	process *cluster.Process
	fault   *fault
}

// world is a cluster in which node-1 has kube-ipvs and node-2 kube-proxy. All endpoints are on node-3, which has neither, and
// node-4 is an innocent neighbor.
type world struct {
	*cluster.Cluster
	api              *controlplane.ControlPlane
	ours, theirs     *side
	neighbor         *cluster.Node
	web, other       *cluster.Pod
	datagrams        *cluster.Server // of web; they are answered
	collector        *cluster.Server // of datagrams; it never answers
	program, version string          // of kube-proxy
	kubeconfig       string
	epoch            int
	blind            *blind // once that was played
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Cluster: cluster.New(t, cluster.Config{Name: "kubeproxy", Nodes: 4, Clients: 2})}
	w.ours = &side{name: "kube-ipvs", node: w.Nodes[0], outside: w.Clients[0]}
	w.theirs = &side{name: "kube-proxy", node: w.Nodes[1], outside: w.Clients[1]}
	w.neighbor = w.Nodes[3]
	w.web, w.other = w.Nodes[2].Pod(t, "web"), w.Nodes[2].Pod(t, "other")
	for _, p := range []*cluster.Pod{w.web, w.other} {
		p.Serve(t, cluster.TCP, http.target)
	}
	w.datagrams = w.web.Serve(t, cluster.UDP, dns.target)
	w.collector = w.web.Serve(t, cluster.UDP, logs.target, cluster.Silent())
	w.neighbor.Serve(t, cluster.TCP, daemonPort)
	for table, s := range w.sides() {
		s.pod = s.node.Pod(t, "client-of-"+s.node.Name)
		s.node.Serve(t, cluster.TCP, daemonPort, cluster.As("daemon"))
		w.routeServices(t, s, fmt.Sprint(100+table))
	}
	// A proxy on node-3 would have every virtual address: what is sent to one never leaves that node.
	for _, prefix := range w.virtual() {
		w.Nodes[2].MustRun(t, "ip", "route", "add", "local", prefix.String(), "dev", "lo")
	}
	return w
}

func (w *world) sides() []*side { return []*side{w.ours, w.theirs} }

// virtual are the ranges of Services' addresses.
func (w *world) virtual() []netip.Prefix {
	return []netip.Prefix{w.Service.V4, w.Service.V6, balancers[cluster.V4], balancers[cluster.V6]}
}

// routeServices makes the router send a client's packets for Services to its side's node. Packets of others find no way.
func (w *world) routeServices(t *testing.T, s *side, table string) {
	t.Helper()
	for _, prefix := range w.virtual() {
		family, client, via := "-4", s.outside.V4, s.node.V4
		if prefix.Addr().Is6() {
			family, client, via = "-6", s.outside.V6, s.node.V6
		}
		w.Router.MustRun(t, "ip", family, "route", "add", prefix.String(), "via", via.String(), "table", table)
		w.Router.MustRun(t, "ip", family, "rule", "add", "from", client.String(), "to", prefix.String(), "lookup", table)
	}
}

// startAPI starts an API server, and gives it the manifests part by part, each a second after the one before.
func (w *world) startAPI(t *testing.T, manifests ...string) {
	t.Helper()
	w.api = controlplane.Start(t, controlplane.Config{
		NetNS:        w.Router.Namespace(),
		BindAddress:  netip.MustParseAddr("192.168.50.1"),
		ReadyTimeout: patience,
	})
	for i, m := range append(manifests, w.marker(0).manifest()) {
		if i > 0 {
			time.Sleep(1100 * time.Millisecond)
		}
		w.apply(t, m)
	}
	var err error
	if w.kubeconfig, err = w.api.Kubeconfig("system:kube-proxy"); err != nil {
		t.Fatal(err)
	}
}

func (w *world) apply(t *testing.T, manifests string) {
	t.Helper()
	if err := w.api.Apply(t.Context(), manifests); err != nil {
		t.Fatalf("apply: %v\n%s", err, manifests)
	}
}

// startOurs starts the agent. The limit of tracked connections is the machine's: a namespace cannot set it.
func (w *world) startOurs(t *testing.T) {
	t.Helper()
	w.start(t, w.ours, cluster.AgentBinary(t), "run", "--kubeconfig", w.kubeconfig, "--hostname-override", w.ours.node.Name,
		"--cluster-cidr", podCIDRs, "--ipvs-scheduler", "mh", "--accept-service-traffic", "--conntrack-max-per-core", "0")
}

// kubeProxyConfig is kube-proxy's default in mode ipvs, except for: limits of connection tracking, which only the first network
// namespace may set; the scheduler, which one case is about and the others do not notice; the time between syncs, each of which
// takes seconds here, and which the stories cause themselves.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
ipvs: {scheduler: mh, minSyncPeriod: 2s, syncPeriod: 15m}
`

func (w *world) startTheirs(t *testing.T) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	text := fmt.Appendf(nil, kubeProxyConfig, w.theirs.node.Name, podCIDRs, w.kubeconfig)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start(t, w.theirs, w.program, "--config", config, "-v=2")
}

// findKubeProxy says where it is, and which release.
func (w *world) findKubeProxy(t *testing.T) {
	t.Helper()
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	w.program, err = upstream.Path(root, upstream.KubeProxy)
	if errors.Is(err, upstream.ErrNotBuilt) && os.Getenv(controlplane.RequireVariable) != "1" {
		t.Skipf("SKIPPED, nothing was compared: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	version := strings.Fields(w.theirs.node.MustRun(t, w.program, "--version")) // "Kubernetes v1.36.3"
	w.version = "kube-proxy " + strings.TrimPrefix(version[len(version)-1], "v")
}

// start starts a side's program so that the test can make its system calls fail, and shows its log if the test fails.
func (w *world) start(t *testing.T, s *side, command ...string) {
	t.Helper()
	s.process, s.fault = startFallible(t, s.node, command...)
	t.Cleanup(func() {
		if t.Failed() {
			log := s.process.Log()
			t.Logf("end of the log of %s:\n%s", s.name, log[max(0, len(log)-8<<10):])
		}
	})
}

// settle waits until both programs have done all that they were given. It changes the port of a Service: kube-proxy removes the
// virtual server of the port before at the very end of a sync, of which it has one for each family.
func (w *world) settle(t *testing.T, sides ...*side) {
	t.Helper()
	if len(sides) == 0 {
		sides = w.sides()
	}
	w.epoch++
	begin := time.Now()
	w.apply(t, w.marker(w.epoch).object())
	for _, s := range sides {
		cluster.Eventually(t, patience, s.name+" has settled", func() error { return w.isSettled(s) })
		t.Logf("%s has settled after %s", s.name, time.Since(begin).Round(100*time.Millisecond))
	}
}

func (w *world) isSettled(s *side) error {
	if !s.process.Running() {
		return fmt.Errorf("%s has ended; its log:\n%s", s.name, s.process.Log())
	}
	servers, err := s.node.VirtualServers()
	if err != nil {
		return err
	}
	now, before := w.marker(w.epoch), w.marker(w.epoch-1)
	for _, f := range w.FamilyList() {
		if _, there := servers[cluster.VirtualKey(cluster.TCP, now.at(f, now.ports[0]))]; !there {
			return errors.New("the marker is not there yet")
		}
		if _, still := servers[cluster.VirtualKey(cluster.TCP, before.at(f, before.ports[0]))]; still {
			return errors.New("the marker's port before is still there")
		}
	}
	return nil
}

// marker is the Service that settle changes.
func (w *world) marker(epoch int) service {
	s := define("marker", markerNumber, w.web)
	s.ports = []port{{name: "marker", protocol: cluster.TCP, port: uint16(1000 + epoch), target: http.target}}
	return s
}
