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
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

const (
	// On an emulated machine, kube-proxy needs a tenth of a second for every set entry, because it starts a process
	// for each.
	patience = 8 * time.Minute
	podCIDRs = "10.244.0.0/16,fd00:10:244::/48"
	// Every node runs a daemon that listens on daemonPort on all addresses.
	daemonPort = 2222
)

var slowly = cluster.Within(5 * time.Second)

// side is one of the two programs, with its node and clients.
type side struct {
	name    string
	node    *cluster.Node
	pod     *cluster.Pod  // on the node
	outside *cluster.Host // the router sends its packets for Services to the node
	process *cluster.Process
	fault   *fault
}

// node-1 runs kube-ipvs, and node-2 runs kube-proxy. All endpoints are on node-3. The other nodes run no proxy.
type world struct {
	*cluster.Cluster
	api              *controlplane.ControlPlane
	ours, theirs     *side
	neighbor         *cluster.Node
	web, other       *cluster.Pod
	datagrams        *cluster.Server // web's server that answers
	collector        *cluster.Server // web's server that never answers
	program, version string          // kube-proxy's path and version
	kubeconfig       string
	epoch            int
	blind            *blind // nil until this case has run
	maker            manifest.Maker
	syncPeriod       string // sync period of kube-proxy
	services         map[string]manifest.Service
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Cluster: cluster.New(t, cluster.Config{Name: "kubeproxy", Nodes: 4, Clients: 2}), syncPeriod: "15m"}
	w.ours = &side{name: "kube-ipvs", node: w.Nodes[0], outside: w.Clients[0]}
	w.theirs = &side{name: "kube-proxy", node: w.Nodes[1], outside: w.Clients[1]}
	w.neighbor = w.Nodes[3]
	w.web, w.other = w.Nodes[2].Pod(t, "web"), w.Nodes[2].Pod(t, "other")
	for _, p := range []*cluster.Pod{w.web, w.other} {
		p.Serve(t, cluster.TCP, http.Target)
	}
	w.datagrams = w.web.Serve(t, cluster.UDP, dns.Target)
	w.collector = w.web.Serve(t, cluster.UDP, logs.Target, cluster.Silent())
	w.neighbor.Serve(t, cluster.TCP, daemonPort)
	for table, s := range w.sides() {
		s.pod = s.node.Pod(t, "client-of-"+s.node.Name)
		s.node.Serve(t, cluster.TCP, daemonPort, cluster.As("daemon"))
		w.routeServices(t, s, fmt.Sprint(100+table))
	}
	// A proxy on node-3 would bind every virtual address, so packets to these addresses would never leave the node.
	for _, prefix := range w.virtual() {
		w.Nodes[2].MustRun(t, "ip", "route", "add", "local", prefix.String(), "dev", "lo")
	}
	w.readServices()
	return w
}

func (w *world) sides() []*side { return []*side{w.ours, w.theirs} }

func (w *world) virtual() []netip.Prefix {
	return []netip.Prefix{w.Service.V4, w.Service.V6, balancers[0], balancers[1]}
}

// routeServices makes the router send a client's packets for Services to its side's node.
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

// Each part of the manifests is applied a second after the previous one.
func (w *world) startAPI(t *testing.T, manifests ...string) {
	t.Helper()
	w.api = controlplane.Start(t, controlplane.Config{
		NetNS:        w.Router.Namespace(),
		BindAddress:  netip.MustParseAddr("192.168.50.1"),
		ReadyTimeout: patience,
	})
	marker, _ := w.marker(0)
	for i, m := range append(manifests, marker.YAML()) {
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

// The conntrack limit can be set only in the initial network namespace.
func (w *world) startOurs(t *testing.T) {
	t.Helper()
	w.start(t, w.ours, cluster.AgentBinary(t), "run", "--kubeconfig", w.kubeconfig, "--hostname-override", w.ours.node.Name,
		"--cluster-cidr", podCIDRs, "--ipvs-scheduler", "mh", "--accept-service-traffic", "--conntrack-max-per-core", "0")
}

// kubeProxyConfig sets no conntrack limits, because they can be set only in the initial network namespace. It sets no
// short sync period, because the stories trigger syncs themselves.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
ipvs: {scheduler: mh, minSyncPeriod: 2s, syncPeriod: %s}
`

func (w *world) startTheirs(t *testing.T) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	text := fmt.Appendf(nil, kubeProxyConfig, w.theirs.node.Name, podCIDRs, w.kubeconfig, w.syncPeriod)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w.start(t, w.theirs, w.program, "--config", config, "-v=2")
}

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

// start starts a side's program so that the test can make its system calls fail.
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

// settle waits until both programs have synced everything. It changes the port of a Service: at the end of a sync,
// kube-proxy removes the old port's virtual server in each family.
func (w *world) settle(t *testing.T, sides ...*side) {
	t.Helper()
	if len(sides) == 0 {
		sides = w.sides()
	}
	w.epoch++
	begin := time.Now()
	marker, _ := w.marker(w.epoch)
	w.apply(t, marker.ServiceYAML())
	for _, s := range sides {
		cluster.Eventually(t, patience, s.name+" has settled", func() error { return w.isSettled(s) })
		t.Logf("%s has synced after %s", s.name, time.Since(begin).Round(100*time.Millisecond))
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
	marker, now := w.marker(w.epoch)
	_, before := w.marker(w.epoch - 1)
	for _, f := range w.FamilyList() {
		if _, found := servers[cluster.VirtualKey(cluster.TCP, marker.At(f, now))]; !found {
			return errors.New("the marker is missing")
		}
		if _, found := servers[cluster.VirtualKey(cluster.TCP, marker.At(f, before))]; found {
			return errors.New("the marker's previous port still exists")
		}
	}
	return nil
}
