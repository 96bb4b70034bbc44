package schedulers

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// patience is the limit for every wait. Only a failing test waits that long.
const patience = 3 * time.Minute

// world has two nodes, each with an agent and ten backends in one pod, and an outside client with many addresses.
// The client's packets go to the first node unless a test calls through.
type world struct {
	*cluster.Cluster
	node1, node2 *cluster.Node
	client       *cluster.Host
	inside       *cluster.Pod // a client on node-1
	backends     []*backend   // w1 to w10 on node-1, w11 to w20 on node-2
	dir          string       // directory of the manifests
	agents       map[*cluster.Node]*cluster.Process
	services     int
	used         int // number of client addresses used by fromMany
	memory       *memory
}

// backend is an endpoint: a port on the pod of its node.
type backend struct {
	name     string
	pod      *cluster.Pod
	port     uint16
	tcp, udp *cluster.Server
}

var shared = cluster.Shared[*world]{Make: newWorld}

func TestMain(m *testing.M) {
	status := shared.Run(m)
	if err := writeMeasured(); err != nil {
		fmt.Fprintln(os.Stderr, "write the measurements:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func onWorld(t *testing.T) *world {
	t.Helper()
	labtest.Need(t)
	return shared.On(t)
}

func newWorld(t *testing.T) (_ *world, err error) {
	t.Helper()
	c, err := cluster.Create(cluster.Config{Name: "schedulers"})
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c, node1: c.Nodes[0], node2: c.Nodes[1], client: c.Clients[0], agents: map[*cluster.Node]*cluster.Process{}}
	if w.dir, err = os.MkdirTemp("", "schedulers"); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for _, set := range []func() error{w.giveAddresses, w.addBackends, func() error { return w.sendThrough(w.node1) }} {
		if err := set(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	w.write(t, "nodes", nodeManifest("node-1", "zone-a", nil)+nodeManifest("node-2", "zone-b", nil))
	for _, node := range w.Nodes {
		w.startAgent(t, node)
	}
	for _, node := range w.Nodes {
		w.agents[node].AwaitLog(t, patience, "initial sync complete")
	}
	w.memory = w.visit(t)
	return w, nil
}

func (w *world) Close() error {
	w.memory.stop()
	return w.Cluster.Close()
}

var clientRanges = map[cluster.Family]netip.Prefix{
	cluster.V4: netip.MustParsePrefix("10.99.0.0/16"),
	cluster.V6: netip.MustParsePrefix("fd00:99::/64"),
}

// giveAddresses assigns all addresses of the ranges without adding each address to an interface.
func (w *world) giveAddresses() error {
	for _, args := range [][]string{
		{"ip", "route", "add", "local", clientRanges[cluster.V4].String(), "dev", "lo"},
		{"ip", "-6", "route", "add", "local", clientRanges[cluster.V6].String(), "dev", "lo"},
		{"sysctl", "-qw", "net.ipv4.ip_nonlocal_bind=1", "net.ipv6.ip_nonlocal_bind=1"},
	} {
		if _, err := w.client.Run(args...); err != nil {
			return err
		}
	}
	for f, family := range map[cluster.Family]string{cluster.V4: "-4", cluster.V6: "-6"} {
		if _, err := w.Router.Run("ip", family, "route", "add", clientRanges[f].String(), "via", w.client.Addr(f).String()); err != nil {
			return err
		}
	}
	return nil
}

func source(f cluster.Family, n int) netip.Addr {
	base := clientRanges[f].Addr()
	if f == cluster.V4 {
		b := base.As4()
		b[2], b[3] = byte(n>>8), byte(n)
		return netip.AddrFrom4(b)
	}
	b := base.As16()
	b[14], b[15] = byte(n>>8), byte(n)
	return netip.AddrFrom16(b)
}

func (w *world) addBackends() error {
	inside, err := w.node1.AddPod("inside")
	if err != nil {
		return err
	}
	w.inside = inside
	for _, node := range w.Nodes {
		pod, err := node.AddPod("farm-" + node.Name)
		if err != nil {
			return err
		}
		for range 10 {
			number := len(w.backends) + 1
			// For mh, the kernel hashes the sum of port and address. The sums must differ, as they do for real pods.
			b := &backend{name: fmt.Sprintf("w%d", number), pod: pod, port: uint16(8000 + 100*node.Index + number)}
			if b.tcp, err = pod.Listen(cluster.TCP, b.port, cluster.As(b.name)); err != nil {
				return err
			}
			if b.udp, err = pod.Listen(cluster.UDP, b.port, cluster.As(b.name)); err != nil {
				return err
			}
			w.backends = append(w.backends, b)
		}
	}
	return nil
}

func (w *world) sendThrough(node *cluster.Node) error {
	return errors.Join(w.AddRouteVia(w.Service.V4.String(), node), w.AddRouteVia(w.Service.V6.String(), node))
}

func (w *world) through(t *testing.T, node *cluster.Node, fn func()) {
	t.Helper()
	if err := w.sendThrough(node); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := w.sendThrough(w.node1); err != nil {
		t.Fatal(err)
	}
}

// UDP flows expire after two seconds, so that a test can wait for their expiry.
func (w *world) startAgent(t *testing.T, node *cluster.Node, more ...string) {
	t.Helper()
	args := []string{cluster.AgentBinary(t), "run", "--manifests", w.dir, "--hostname-override", node.Name,
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--conntrack-max-per-core", "0", "--ipvs-udp-timeout", "2s",
		"--status-socket", w.socket(node)}
	w.agents[node] = node.MustStart(t, append(args, more...)...)
}

func (w *world) socket(node *cluster.Node) string {
	return filepath.Join(w.dir+"-"+node.Name, "status.sock")
}

func (w *world) write(t *testing.T, name, manifests string) {
	t.Helper()
	if err := cluster.WriteManifests(w.dir, name, manifests); err != nil {
		t.Fatal(err)
	}
}

// notes are annotations without the prefix kube-ipvs.io/.
type notes map[string]string

// with returns a copy with an additional annotation.
func (n notes) with(key, value string) notes {
	more := maps.Clone(n)
	more[key] = value
	return more
}

func (n notes) yaml() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(n)) {
		full := key
		if !strings.Contains(key, "/") {
			full = "kube-ipvs.io/" + key
		}
		parts = append(parts, fmt.Sprintf("%s: %q", full, n[key]))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func nodeManifest(name, zone string, n notes) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {topology.kubernetes.io/zone: %s}, annotations: %s}
---`, name, zone, n.yaml())
}

// service is a dual-stack Service.
type service struct {
	name     string
	ips      map[cluster.Family]string
	notes    notes
	backends []*backend
}

func (w *world) service(t *testing.T, name string, n notes, backends []*backend) service {
	t.Helper()
	w.services++
	s := service{name: name, notes: n, backends: backends, ips: map[cluster.Family]string{
		cluster.V4: fmt.Sprintf("10.96.1.%d", w.services), cluster.V6: fmt.Sprintf("fd00:10:96::1%02x", w.services),
	}}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(w.dir, name+".yaml")) })
	w.put(t, s)
	return s
}

func (w *world) put(t *testing.T, s service) {
	t.Helper()
	w.write(t, s.name, s.manifest())
}

func (s service) manifest() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: %s}
spec:
  clusterIP: "%s"
  clusterIPs: ["%s", "%s"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [{name: tcp, protocol: TCP, port: 80}, {name: udp, protocol: UDP, port: 80}]
---`, s.name, s.notes.yaml(), s.ips[cluster.V4], s.ips[cluster.V4], s.ips[cluster.V6])
	for _, e := range s.backends {
		for _, f := range []cluster.Family{cluster.V4, cluster.V6} {
			fmt.Fprintf(&b, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s-%d, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [{name: tcp, protocol: TCP, port: %d}, {name: udp, protocol: UDP, port: %d}]
endpoints:
- addresses: ["%s"]
  nodeName: %s
  zone: %s
  targetRef: {kind: Pod, name: %s, namespace: default}
  conditions: {ready: true, serving: true, terminating: false}
---`, s.name, e.name, f, s.name, f, e.port, e.port, e.pod.Addr(f), e.pod.Node.Name, zoneOf(e), e.name)
		}
	}
	return b.String()
}

func zoneOf(e *backend) string {
	return map[string]string{"node-1": "zone-a", "node-2": "zone-b"}[e.pod.Node.Name]
}

func (s service) at(f cluster.Family) string {
	return s.on(f, 80)
}

type state struct {
	scheduler string
	weights   map[string]int
}

func (s service) stateOn(node *cluster.Node, proto cluster.Protocol, f cluster.Family) (state, error) {
	servers, err := node.VirtualServers()
	if err != nil {
		return state{}, err
	}
	server, ok := servers[cluster.VirtualKey(proto, s.at(f))]
	if !ok {
		return state{}, fmt.Errorf("%s has no virtual server %s %s", node.Name, proto, s.at(f))
	}
	have := state{server.Scheduler, map[string]int{}}
	for addr, weight := range server.Weights {
		name := addr.String()
		for _, e := range s.backends {
			if e.pod.At(f, e.port) == name {
				name = e.name
			}
		}
		have.weights[name] = weight
	}
	return have, nil
}

// await waits until every virtual server of the Service has this scheduler and these weights, and the addresses are
// bound, which the agent does last. It ignores draining destinations.
func (w *world) await(t *testing.T, s service, scheduler string, weights map[string]int) {
	t.Helper()
	for _, node := range w.Nodes {
		cluster.Eventually(t, patience, fmt.Sprintf("%s has Service %s with %s and %v", node.Name, s.name, scheduler, weights), func() error {
			for _, f := range w.FamilyList() {
				for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
					have, err := s.stateOn(node, proto, f)
					if err != nil {
						return err
					}
					maps.DeleteFunc(have.weights, func(name string, weight int) bool { return weight == 0 && weights[name] == 0 })
					want := maps.Clone(weights)
					maps.DeleteFunc(want, func(_ string, weight int) bool { return weight == 0 })
					if have.scheduler != scheduler || !maps.Equal(have.weights, want) {
						return fmt.Errorf("%s %s has %v", f, proto, have)
					}
				}
				switch bound, err := node.Binds(netip.MustParseAddr(s.ips[f])); {
				case err != nil:
					return err
				case !bound:
					return fmt.Errorf("the node has not bound %s", s.ips[f])
				}
			}
			return nil
		})
	}
}

func (w *world) up(t *testing.T, name, scheduler string, n notes, backends ...*backend) service {
	t.Helper()
	s := w.service(t, name, n.with("scheduler", scheduler), backends)
	w.await(t, s, scheduler, alike(1, backends))
	return s
}

func alike(weight int, backends []*backend) map[string]int {
	weights := map[string]int{}
	for _, b := range backends {
		weights[b.name] = weight
	}
	return weights
}
