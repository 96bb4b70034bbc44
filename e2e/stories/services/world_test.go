package services

import (
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

// patience is the limit for every wait. Only a failing test waits that long.
const patience = 2 * time.Minute

const podCIDRs = "10.244.0.0/16,fd00:10:244::/48"

// Every agent here needs inNamespace, because the conntrack limit can be set only in the initial network namespace.
var inNamespace = append([]string{"--conntrack-max-per-core", "0"}, cluster.DataPlaneFlags()...)

var agentFlags = append([]string{"--cluster-cidr", podCIDRs}, inNamespace...)

func onManifests(t *testing.T, node *cluster.Node, verb, dir string, flags ...string) []string {
	t.Helper()
	return slices.Concat([]string{cluster.AgentBinary(t), verb, "--manifests", dir, "--hostname-override", node.Name, "--status-socket", node.StatusSocket()}, flags)
}

func writeManifests(t *testing.T, dir, text string) {
	t.Helper()
	writeManifest(t, dir, "all", text)
}

func writeManifest(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := cluster.WriteManifests(dir, name, text); err != nil {
		t.Fatal(err)
	}
}

type world struct {
	*cluster.Cluster
	api    *controlplane.ControlPlane
	agents map[*cluster.Node]*cluster.Process
	config string
	flags  []string
}

// newWorld starts everything except the agents. Tests share one world, because an API server takes half a minute to
// start on an emulated machine.
func newWorld(nodes, clients int) (*world, error) {
	c, err := cluster.Create(cluster.Config{Name: "e2e", Nodes: nodes, Clients: clients})
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c, agents: map[*cluster.Node]*cluster.Process{}, flags: agentFlags}
	w.api, err = controlplane.Launch(context.Background(), controlplane.Config{
		NetNS:        w.Router.Namespace(),
		ReadyTimeout: 5 * time.Minute, // for a busy emulated machine
		BindAddress:  netip.MustParseAddr("192.168.50.1"),
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// The agent's user has exactly kube-proxy's permissions.
	if w.config, err = w.api.Kubeconfig("system:kube-proxy"); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *world) Close() error { return errors.Join(w.api.Stop(), w.Cluster.Close()) }

func (w *world) agentCommand(t *testing.T, node *cluster.Node, flags ...string) []string {
	t.Helper()
	return slices.Concat([]string{cluster.AgentBinary(t), "run", "--kubeconfig", w.config, "--hostname-override", node.Name,
		"--status-socket", node.StatusSocket()}, w.flags, flags)
}

func (w *world) startAgent(t *testing.T, node *cluster.Node, flags ...string) {
	t.Helper()
	w.agents[node] = node.MustStart(t, w.agentCommand(t, node, flags...)...)
}

func (w *world) restartAgent(t *testing.T, node *cluster.Node, flags ...string) {
	t.Helper()
	restart := func(flags ...string) {
		if err := w.agents[node].Stop(patience); err != nil {
			t.Errorf("stop the agent on %s: %v", node.Name, err)
		}
		w.startAgent(t, node, flags...)
		w.agents[node].AwaitLog(t, patience, "initial sync complete")
	}
	restart(flags...)
	t.Cleanup(func() { restart() })
}

func (w *world) apply(t *testing.T, manifests string) {
	t.Helper()
	if err := w.api.Apply(t.Context(), manifests); err != nil {
		t.Fatalf("apply: %v\n%s", err, manifests)
	}
}

// applyLate is like apply, but works in cleanups, which run after the test's context has ended.
func (w *world) applyLate(t *testing.T, manifests string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.api.Apply(ctx, manifests); err != nil {
		t.Errorf("apply: %v\n%s", err, manifests)
	}
}

// remove does not use the test's context, so that cleanups can call it.
func (w *world) remove(t *testing.T, manifests string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.api.Delete(ctx, manifests); err != nil {
		t.Errorf("delete: %v\n%s", err, manifests)
	}
}

// awaitDestinations waits until the virtual server of a port has these destinations. Any other destination must be
// draining.
func awaitDestinations(t *testing.T, node *cluster.Node, p port, at string, destinations ...string) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s has %s %s with %v", node.Name, p.Protocol, at, destinations), func() error {
		servers, err := node.VirtualServers()
		if err != nil {
			return err
		}
		server, found := servers[cluster.VirtualKey(p.Protocol, at)]
		if !found {
			return errors.New("no such virtual server")
		}
		return compare(server.Weights, destinations)
	})
}

func (w *world) awaitNoServer(t *testing.T, node *cluster.Node, svc service, p port) {
	t.Helper()
	for _, f := range w.FamilyList() {
		key := cluster.VirtualKey(p.Protocol, svc.At(f, p))
		cluster.Eventually(t, patience, node.Name+" has no "+key, func() error {
			servers, err := node.VirtualServers()
			if _, found := servers[key]; found {
				return errors.New("the virtual server still exists")
			}
			return err
		})
	}
}

// draining marks a destination that receives no new connections.
const draining = " draining"

// compare returns an error unless exactly these destinations have a weight above 0.
func compare(have map[netip.AddrPort]int, want []string) error {
	for _, d := range want {
		addr, isDraining := strings.CutSuffix(d, draining)
		if weight, ok := have[netip.MustParseAddrPort(addr)]; !ok || (weight == 0) != isDraining {
			return fmt.Errorf("want %s, have %v", d, have)
		}
	}
	for addr, weight := range have {
		if weight > 0 && !slices.Contains(want, addr.String()) {
			return fmt.Errorf("unexpected destination %s in %v", addr, have)
		}
	}
	return nil
}

// zones lists the nodes' zones by number. node-2 and node-3 share a zone.
var zones = []string{"", "zone-a", "zone-b", "zone-b"}

func nodeManifest(n *cluster.Node) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {topology.kubernetes.io/zone: %s}}
spec: {podCIDR: %s, podCIDRs: ["%s", "%s"]}
`, n.Name, zones[n.Index], n.PodCIDR.V4, n.PodCIDR.V4, n.PodCIDR.V6)
}

// setNodeAddresses writes a Node's addresses. Server-side apply accepts only one address of each type.
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
