package coexist

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// patience is the limit for every wait. Only a failing test waits that long.
const patience = 60 * time.Second

const podCIDRs = "10.244.0.0/16,fd00:10:244::/48"

var slowly = cluster.Within(10 * time.Second)

// world runs agents on the first two nodes. Tests start agents on the third node. The router sends packets for
// Services to node-1.
type world struct {
	*cluster.Cluster
	node1, node2, node3 *cluster.Node
	client, spareClient *cluster.Pod // on node-1 and node-3
	near, far           *cluster.Pod // web-1 on node-1 and web-2 on node-2
	outside             *cluster.Host
	dir                 string // directory of the manifests
	agents              map[*cluster.Node]*cluster.Process
}

var shared = cluster.Shared[*world]{Make: newWorld}

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }

func onWorld(t *testing.T) *world {
	t.Helper()
	labtest.Need(t)
	return shared.On(t)
}

func newWorld(t *testing.T) (*world, error) {
	t.Helper()
	c, err := cluster.Create(cluster.Config{Name: "coexist", Nodes: 3, Clients: 2})
	if err != nil {
		return nil, err
	}
	w := &world{Cluster: c, node1: c.Nodes[0], node2: c.Nodes[1], node3: c.Nodes[2], outside: c.Clients[0],
		agents: map[*cluster.Node]*cluster.Process{}}
	if err := w.populate(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for _, node := range w.Nodes[:2] {
		w.startAgent(t, node)
	}
	for _, node := range w.Nodes[:2] {
		w.agents[node].AwaitLog(t, patience, "initial sync complete")
	}
	return w, nil
}

func (w *world) populate() (err error) {
	pod := func(n *cluster.Node, name string) *cluster.Pod {
		p, failed := n.AddPod(name)
		err = errors.Join(err, failed)
		return p
	}
	w.client, w.spareClient = pod(w.node1, "client"), pod(w.node3, "spare-client")
	w.near, w.far = pod(w.node1, "web-1"), pod(w.node2, "web-2")
	if err != nil {
		return err
	}
	for _, server := range []*cluster.Pod{w.near, w.far} {
		for _, p := range ports {
			if _, err := server.Listen(p.protocol, p.target); err != nil {
				return err
			}
		}
	}
	for _, prefix := range []netip.Prefix{w.Service.V4, w.Service.V6, balancers[cluster.V4], balancers[cluster.V6]} {
		if err := w.AddRouteVia(prefix.String(), w.node1); err != nil {
			return err
		}
	}
	if w.dir, err = os.MkdirTemp("", "coexist"); err != nil {
		return err
	}
	return cluster.WriteManifests(w.dir, "services", w.manifests())
}

// agentCommand sets no conntrack limit, because it can be set only in the initial network namespace.
func (w *world) agentCommand(t *testing.T, node *cluster.Node, flags ...string) []string {
	t.Helper()
	return slices.Concat([]string{cluster.AgentBinary(t), "run", "--manifests", w.dir, "--hostname-override", node.Name,
		"--cluster-cidr", podCIDRs, "--conntrack-max-per-core", "0"}, flags)
}

func (w *world) startAgent(t *testing.T, node *cluster.Node, flags ...string) {
	t.Helper()
	w.agents[node] = node.MustStart(t, w.agentCommand(t, node, flags...)...)
}

func (w *world) stopAgent(t *testing.T, node *cluster.Node) {
	t.Helper()
	if err := w.agents[node].Stop(patience); err != nil {
		t.Errorf("stop the agent on %s: %v", node.Name, err)
	}
}

func (w *world) restartAgent(t *testing.T, node *cluster.Node, flags ...string) {
	t.Helper()
	restart := func(flags ...string) {
		w.stopAgent(t, node)
		w.startAgent(t, node, flags...)
		w.agents[node].AwaitLog(t, patience, "initial sync complete")
	}
	restart(flags...)
	t.Cleanup(func() { restart() })
}

func cleanup(t *testing.T, node *cluster.Node, flags ...string) (string, error) {
	t.Helper()
	return node.Run(slices.Concat([]string{cluster.AgentBinary(t), "cleanup", "--conntrack-max-per-core", "0"}, flags)...)
}

func lines(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
}
