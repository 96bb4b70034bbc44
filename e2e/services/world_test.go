package services

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/controlplane"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// patience bounds every wait for the agent; nothing waits that long when things work.
const patience = 60 * time.Second

// podCIDRs of the whole cluster: what the agents are told is local.
const podCIDRs = "10.244.0.0/16,fd00:10:244::/48"

// world is a cluster with a control plane, and the agent on every node.
type world struct {
	*cluster.Cluster
	api    *controlplane.ControlPlane
	agents map[*cluster.Node]*cluster.Process
	config string // the agents' kubeconfig
	flags  []string
}

// newWorld starts everything. Flags are added to the agents' command line.
func newWorld(t *testing.T, nodes int, flags ...string) *world {
	t.Helper()
	labtest.Need(t)
	w := &world{Cluster: cluster.New(t, cluster.Config{Name: "e2e", Nodes: nodes}), agents: map[*cluster.Node]*cluster.Process{}}
	w.api = controlplane.Start(t, controlplane.Config{
		NetNS:        w.Router.Namespace(),
		ReadyTimeout: 5 * time.Minute, // an emulated machine that others use, too
		BindAddress:  netip.MustParseAddr("192.168.50.1"),
	})
	var err error
	// kube-proxy's user, with kube-proxy's rights and no others.
	if w.config, err = w.api.Kubeconfig("system:kube-proxy"); err != nil {
		t.Fatal(err)
	}
	w.flags = append([]string{"--cluster-cidr", podCIDRs}, flags...)
	for _, node := range w.Nodes {
		w.apply(t, nodeManifest(node))
		w.startAgent(t, node)
	}
	return w
}

// agentBinary is the program under test.
func agentBinary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("KUBE_IPVS_AGENT")
	if path == "" {
		t.Fatal("KUBE_IPVS_AGENT is not set: it must name the kube-ipvs binary to test; `make e2e` builds and names it")
	}
	return path
}

func (w *world) startAgent(t *testing.T, node *cluster.Node) {
	t.Helper()
	args := append([]string{agentBinary(t), "run", "--kubeconfig", w.config, "--hostname-override", node.Name}, w.flags...)
	w.agents[node] = node.MustStart(t, args...)
	process := w.agents[node]
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the agent on %s:\n%s", node.Name, process.Log())
		}
	})
}

func (w *world) apply(t *testing.T, manifests string) {
	t.Helper()
	if err := w.api.Apply(t.Context(), manifests); err != nil {
		t.Fatalf("apply: %v\n%s", err, manifests)
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

// awaitTable waits until the virtual server on the node has these destinations, in ipvsadm's words, and otherwise none but
// draining ones, which stay until their last connection is forgotten. Nil means that there shall be no such server.
func (w *world) awaitTable(t *testing.T, node *cluster.Node, server string, destinations []string) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s has %s with %v", node.Name, server, destinations), func() error {
		out, err := node.Run("ipvsadm", "-Sn")
		if err != nil {
			return err
		}
		found, have := false, map[string]bool{}
		for _, d := range destinations {
			have[d] = false
		}
		for line := range strings.Lines(out) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "-A "+server+" ") {
				found = true
			}
			rest, ok := strings.CutPrefix(line, "-a "+server+" ")
			if _, wanted := have[rest]; ok && (wanted || !strings.HasSuffix(rest, " -w 0")) {
				have[rest] = true
			}
		}
		if found != (destinations != nil) || len(have) != len(destinations) {
			return fmt.Errorf("found %t, destinations %v", found, have)
		}
		for d, there := range have {
			if !there {
				return fmt.Errorf("%q is missing in:\n%s", d, out)
			}
		}
		return nil
	})
}

func nodeManifest(n *cluster.Node) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s}
spec: {podCIDR: %s, podCIDRs: ["%s", "%s"]}
---`, n.Name, n.PodCIDR.V4, n.PodCIDR.V4, n.PodCIDR.V6)
}

// service is a Service under test with its endpoints.
type service struct {
	name     string
	ips      []string // ClusterIPs: IPv4, IPv6
	ports    []port
	affinity int // seconds
	extra    string
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
	state string // "", "unready", "terminating" (and serving), "dead" (terminating and not serving)
}

func podEndpoint(p *cluster.Pod) endpoint { return endpoint{host: p.Host, node: p.Node.Name} }

func (e endpoint) as(state string) endpoint { e.state = state; return e }

var conditions = map[string]string{
	"":            "{ready: true, serving: true, terminating: false}",
	"unready":     "{ready: false, serving: false, terminating: false}",
	"terminating": "{ready: false, serving: true, terminating: true}",
	"dead":        "{ready: false, serving: false, terminating: true}",
}

func (s service) manifest() string { return s.object() + s.slices() }

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
metadata: {name: %s}
spec:
  clusterIP: "%s"
  clusterIPs: ["%s"]
  ipFamilies: [%s]
  ipFamilyPolicy: %s
`, s.name, s.ips[0], strings.Join(s.ips, `", "`), strings.Join(families, ", "), policy)
	if s.affinity > 0 {
		fmt.Fprintf(&b, "  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}\n", s.affinity)
	}
	b.WriteString(s.extra)
	b.WriteString("  ports:\n")
	for _, p := range s.ports {
		fmt.Fprintf(&b, "  - {name: %s, protocol: %s, port: %d}\n", p.name, kubernetesName(p.protocol), p.port)
	}
	b.WriteString("---")
	return b.String()
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
  labels: {kubernetes.io/service-name: %s}
addressType: %s
ports:
`, name, s.name, family)
	for _, p := range s.ports {
		fmt.Fprintf(&b, "- {name: %s, protocol: %s, port: %d}\n", p.name, kubernetesName(p.protocol), p.target)
	}
	b.WriteString("endpoints:")
	if len(endpoints) == 0 {
		b.WriteString(" []")
	}
	b.WriteString("\n")
	for _, e := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [\"%s\"], nodeName: %s, conditions: %s}\n", e.host.Addr(family), e.node, conditions[e.state])
	}
	b.WriteString("---")
	return b.String()
}

func kubernetesName(p cluster.Protocol) string { return strings.ToUpper(string(p)) }

// at is the address of a port of the Service in a family.
func (s service) at(family cluster.Family, p port) string {
	for _, ip := range s.ips {
		if a := netip.MustParseAddr(ip); a.Is4() == (family == cluster.V4) {
			return netip.AddrPortFrom(a, p.port).String()
		}
	}
	panic(fmt.Sprintf("Service %s has no %s address", s.name, family))
}
