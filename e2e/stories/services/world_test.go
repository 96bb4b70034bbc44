package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

// patience bounds every wait for the agent; nothing waits that long when things work.
const patience = 2 * time.Minute

// podCIDRs of the whole cluster: what the agents are told is local.
const podCIDRs = "10.244.0.0/16,fd00:10:244::/48"

// inNamespace is what an agent must be told here: the limit of tracked connections is the machine's, and no namespace sets it.
var inNamespace = []string{"--conntrack-max-per-core", "0"}

// agentFlags are what most agents are told.
var agentFlags = append([]string{"--cluster-cidr", podCIDRs}, inNamespace...)

// onManifests is the command line of an agent that serves a folder of manifests.
func onManifests(t *testing.T, node *cluster.Node, verb, dir string, flags ...string) []string {
	t.Helper()
	return slices.Concat([]string{cluster.AgentBinary(t), verb, "--manifests", dir, "--hostname-override", node.Name}, flags)
}

// world is a cluster with a control plane, and the agent on every node.
type world struct {
	*cluster.Cluster
	api    *controlplane.ControlPlane
	agents map[*cluster.Node]*cluster.Process
	config string // the agents' kubeconfig
	flags  []string
}

// newWorld starts everything but the agents. An API server takes an emulated machine half a minute, so tests share one world;
// Close ends it.
func newWorld(nodes, clients int) (*world, error) {
	c, err := cluster.Create(cluster.Config{Name: "e2e", Nodes: nodes, Clients: clients})
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c, agents: map[*cluster.Node]*cluster.Process{}, flags: agentFlags}
	w.api, err = controlplane.Launch(context.Background(), controlplane.Config{
		NetNS:        w.Router.Namespace(),
		ReadyTimeout: 5 * time.Minute, // an emulated machine that others use, too
		BindAddress:  netip.MustParseAddr("192.168.50.1"),
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// kube-proxy's user, with kube-proxy's rights and no others.
	if w.config, err = w.api.Kubeconfig("system:kube-proxy"); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close ends the world.
func (w *world) Close() error { return errors.Join(w.api.Stop(), w.Cluster.Close()) }

// startAgent starts the agent on a node, with further flags if there are any.
func (w *world) startAgent(t *testing.T, node *cluster.Node, flags ...string) {
	t.Helper()
	args := slices.Concat([]string{cluster.AgentBinary(t), "run", "--kubeconfig", w.config, "--hostname-override", node.Name}, w.flags, flags)
	w.agents[node] = node.MustStart(t, args...)
}

// restartAgent gives a node an agent with other flags until the end of the test.
func (w *world) restartAgent(t *testing.T, node *cluster.Node, flags ...string) {
	t.Helper()
	again := func(flags ...string) {
		if err := w.agents[node].Stop(patience); err != nil {
			t.Errorf("stop the agent on %s: %v", node.Name, err)
		}
		w.startAgent(t, node, flags...)
		w.agents[node].AwaitLog(t, patience, "initial sync complete")
	}
	again(flags...)
	t.Cleanup(func() { again() })
}

func (w *world) apply(t *testing.T, manifests string) {
	t.Helper()
	if err := w.api.Apply(t.Context(), manifests); err != nil {
		t.Fatalf("apply: %v\n%s", err, manifests)
	}
}

// applyLate is apply for cleanups, when the test's context is over.
func (w *world) applyLate(t *testing.T, manifests string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.api.Apply(ctx, manifests); err != nil {
		t.Errorf("apply: %v\n%s", err, manifests)
	}
}

// remove deletes objects; it also serves cleanups, when the test's context is over.
func (w *world) remove(t *testing.T, manifests string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.api.Delete(ctx, manifests); err != nil {
		t.Errorf("delete: %v\n%s", err, manifests)
	}
}

// awaitTable waits until the virtual server on the node has these destinations, and otherwise none but draining ones, which
// stay until their last connection is forgotten. Nil means that there shall be no such server.
func (w *world) awaitTable(t *testing.T, node *cluster.Node, server string, destinations []string) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s has %s with %v", node.Name, server, destinations), func() error {
		servers, err := node.VirtualServers()
		if err != nil {
			return err
		}
		have, found := servers[server]
		if found != (destinations != nil) {
			return fmt.Errorf("found %t", found)
		}
		return compare(have.Weights, destinations)
	})
}

// draining marks a destination that gets no new connections.
const draining = " draining"

func compare(have map[netip.AddrPort]int, want []string) error {
	for _, d := range want {
		addr, isDraining := strings.CutSuffix(d, draining)
		if weight, ok := have[netip.MustParseAddrPort(addr)]; !ok || (weight == 0) != isDraining {
			return fmt.Errorf("want %s, have %v", d, have)
		}
	}
	for addr, weight := range have {
		if weight > 0 && !slices.Contains(want, addr.String()) {
			return fmt.Errorf("%s is too much in %v", addr, have)
		}
	}
	return nil
}

// zones of the nodes, by number: the second and third share one.
var zones = []string{"", "zone-a", "zone-b", "zone-b"}

func nodeManifest(n *cluster.Node) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {topology.kubernetes.io/zone: %s}}
spec: {podCIDR: %s, podCIDRs: ["%s", "%s"]}
---`, n.Name, zones[n.Index], n.PodCIDR.V4, n.PodCIDR.V4, n.PodCIDR.V6)
}

// setNodeAddresses writes a Node's addresses. (Server-side apply takes only one of a kind.)
func (w *world) setNodeAddresses(ctx context.Context, n *cluster.Node, addrs ...netip.Addr) error {
	client, err := kubernetes.NewForConfig(w.api.Client())
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	node.Status.Addresses = nil
	for _, a := range addrs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	_, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// service is a Service under test with its endpoints.
type service struct {
	name     string
	kind     string   // its type; "" is ClusterIP
	ips      []string // ClusterIPs: IPv4, IPv6
	balancer []string // IP addresses of its load balancer
	status   string   // the load balancer's status, where addresses do not say it
	labels   string   // such as "key: value"
	ports    []port
	nodePort uint16 // of every port, the protocols differ
	affinity int    // seconds
	extra    string // further lines of the spec
	// sliceLabels are further ones, such as ", key: value".
	sliceLabels string
	// endpoints, in one slice for each family.
	endpoints []endpoint
}

type port struct {
	name     string
	protocol cluster.Protocol
	port     uint16
	target   uint16
}

type endpoint struct {
	host  *cluster.Host
	node  string
	state string // "", "unready", "terminating" (and serving), "dead" (terminating and not serving), "published"
	hints string // such as "forZones: [{name: zone-a}]"
}

// with returns the Service with a further line in its spec.
func (s service) with(line string) service {
	s.extra += "  " + line + "\n"
	return s
}

// to returns the Service with other endpoints.
func (s service) to(endpoints ...endpoint) service {
	s.endpoints = endpoints
	return s
}

func nodeEndpoint(n *cluster.Node) endpoint { return endpoint{host: n.Host, node: n.Name} }

func podEndpoint(p *cluster.Pod) endpoint { return endpoint{host: p.Host, node: p.Node.Name} }

func (e endpoint) as(state string) endpoint { e.state = state; return e }

func (e endpoint) hinted(hints string) endpoint { e.hints = hints; return e }

var conditions = map[string]string{
	"":            "{ready: true, serving: true, terminating: false}",
	"unready":     "{ready: false, serving: false, terminating: false}",
	"terminating": "{ready: false, serving: true, terminating: true}",
	"dead":        "{ready: false, serving: false, terminating: true}",
	"published":   "{ready: true, serving: false, terminating: true}", // by publishNotReadyAddresses
}

func (s service) manifest() string { return s.object() + s.slices() }

// even says whether every node has the same destinations.
func (s service) even() bool {
	return !strings.Contains(s.extra, "Policy: Local") && !slices.ContainsFunc(s.endpoints, func(e endpoint) bool { return e.hints != "" })
}

func (s service) object() string {
	var b strings.Builder
	families := []string{}
	for _, ip := range s.ips {
		families = append(families, fmt.Sprintf("IPv%d", map[bool]int{true: 4, false: 6}[netip.MustParseAddr(ip).Is4()]))
	}
	policy := "SingleStack"
	if len(s.ips) == 2 {
		policy = "RequireDualStack"
	}
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Service
metadata: {name: %s, labels: {%s}}
spec:
  type: %s
  clusterIP: "%s"
  clusterIPs: ["%s"]
  ipFamilies: [%s]
  ipFamilyPolicy: %s
`, s.name, s.labels, cmp.Or(s.kind, "ClusterIP"), s.ips[0], strings.Join(s.ips, `", "`), strings.Join(families, ", "), policy)
	if s.affinity > 0 {
		fmt.Fprintf(&b, "  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}\n", s.affinity)
	}
	b.WriteString(s.extra)
	b.WriteString("  ports:\n")
	for _, p := range s.ports {
		fmt.Fprintf(&b, "  - {name: %s, protocol: %s, port: %d%s}\n", p.name, p.protocol, p.port, s.nodePortField())
	}
	if status := s.balancerStatus(); status != "" {
		fmt.Fprintf(&b, "status: {loadBalancer: {ingress: [%s]}}\n", status)
	}
	b.WriteString("---")
	return b.String()
}

func (s service) nodePortField() string {
	if s.nodePort == 0 {
		return ""
	}
	return fmt.Sprintf(", nodePort: %d", s.nodePort)
}

func (s service) balancerStatus() string {
	if s.status != "" || len(s.balancer) == 0 {
		return s.status
	}
	return `{ip: "` + strings.Join(s.balancer, `"}, {ip: "`) + `"}`
}

func (s service) slices() string {
	var b strings.Builder
	for _, ip := range s.ips {
		family := cluster.V6
		if netip.MustParseAddr(ip).Is4() {
			family = cluster.V4
		}
		b.WriteString(s.slice(fmt.Sprintf("%s-v%d", s.name, family), family, s.endpoints))
	}
	return b.String()
}

func (s service) slice(name string, family cluster.Family, endpoints []endpoint) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %s
  labels: {kubernetes.io/service-name: %s%s}
addressType: %s
ports:
`, name, s.name, s.sliceLabels, family)
	for _, p := range s.ports {
		fmt.Fprintf(&b, "- {name: %s, protocol: %s, port: %d}\n", p.name, p.protocol, p.target)
	}
	b.WriteString("endpoints:")
	if len(endpoints) == 0 {
		b.WriteString(" []")
	}
	b.WriteString("\n")
	for _, e := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [\"%s\"], nodeName: %s, conditions: %s, hints: {%s}}\n",
			e.host.Addr(family), e.node, conditions[e.state], e.hints)
	}
	b.WriteString("---")
	return b.String()
}

// at is the address of a port of the Service in a family.
func (s service) at(family cluster.Family, p port) string { return addrOf(s.ips, family, p.port) }

// atBalancer is the same on its load balancer.
func (s service) atBalancer(family cluster.Family, p port) string {
	return addrOf(s.balancer, family, p.port)
}

// atNode is the node port on a node.
func (s service) atNode(n *cluster.Node, family cluster.Family) string {
	return n.At(family, s.nodePort)
}

func addrOf(ips []string, family cluster.Family, port uint16) string {
	for _, ip := range ips {
		if a := netip.MustParseAddr(ip); a.Is4() == (family == cluster.V4) {
			return netip.AddrPortFrom(a, port).String()
		}
	}
	panic(fmt.Sprintf("%v holds no %s address", ips, family))
}
