package services

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestMoveToIPVS loads the module ip_vs while an agent balances with nftables. The agent moves to IPVS, and a restart with --data-plane=nftables moves
// the node back. In both directions, no open connection is lost and no new one fails. Then the agent is killed after each write of a move.
func TestMoveToIPVS(t *testing.T) {
	labtest.Need(t)
	if !cluster.Balancing() {
		t.Skip("other agents of this run use ip_vs, so it cannot be unloaded")
	}
	cluster.NeedPauses(t)
	m := newMoveStage(t)
	others := m.addOthers(t, cluster.Size(0, 10_000))
	m.show = cluster.HideModule(t, "ip_vs")

	agent := m.start(t)
	m.balances(t, "nftables")
	stays := m.Nodes[1].MustStart(t, m.command(t, m.Nodes[1], "--data-plane=nftables")...)
	stays.AwaitLog(t, patience, "initial sync complete")
	flows, asking := m.openFlows(t), m.keepAsking(t)
	// A virtual server of another program at a Service's port must not become the agent's. This also loads the module.
	m.show()
	m.node.MustRun(t, "ipvsadm", "-A", "-t", m.svc.At(cluster.V4, http), "-s", "rr")
	agent.AwaitLog(t, patience, "another program's virtual server is in IPVS: -t "+m.svc.At(cluster.V4, http))
	m.node.MustRun(t, "ipvsadm", "-D", "-t", m.svc.At(cluster.V4, http))
	began := time.Now()
	agent.AwaitLog(t, patience, "moved from nftables to IPVS")
	took := time.Since(began)
	if took > 30*time.Second {
		t.Errorf("the move took %s", took)
	}
	m.balances(t, "ipvs")
	hold(t, asking)
	if chains := m.Nodes[1].MustRun(t, "nft", "list", "chains"); !strings.Contains(chains, balancing) {
		t.Errorf("an agent with --data-plane=nftables has moved; its log:\n%s", stays.Log())
	}
	// The running agent now changes IPVS.
	m.apply(t, m.svc.With("endpoints: [{addresses: [web-1]}, {addresses: [web-2]}, {addresses: [web-3]}]"))
	cluster.Eventually(t, patience, "web-3 gets connections", func() error {
		if got := m.client.Get(t, cluster.TCP, m.svc.At(cluster.V4, http), slowly); got.Server != "web-3" {
			return fmt.Errorf("%s answered", got.Server)
		}
		return nil
	})
	viaIPVS := m.openFlows(t)
	there := m.unharmed(t, flows)

	mustStop(t, agent)
	agent = m.start(t, "--data-plane=nftables")
	m.balances(t, "nftables")
	hold(t, asking)
	back := m.unharmed(t, append(flows, viaIPVS...))
	asked := 0
	for _, a := range asking {
		a.mustNeverFail(t)
		asked += a.count()
	}
	t.Attr("figure", fmt.Sprintf("beside %d other Services: nftables to IPVS, %.0f s after ip_vs was available: %s; back at a restart: %s; %d new connections meanwhile, none failed",
		others, took.Seconds(), there, back, asked))
	mustStop(t, agent)
	t.Run("killed after each write", m.killedAtEachWrite)
}

type moveStage struct {
	*cluster.Cluster
	node    *cluster.Node
	client  *cluster.Pod
	outside *cluster.Host
	dir     string
	sockets string // the agents of other tests answer at the default path
	svc     service
	small   service // with fewer virtual servers
	ports   []port
	show    func()
	// lastPorts contains the last source port of each client's requests.
	lastPorts map[string]*uint16
}

func newMoveStage(t *testing.T) *moveStage {
	t.Helper()
	c := cluster.New(t, cluster.Config{Name: "move", Nodes: 2, Clients: 1})
	m := &moveStage{Cluster: c, node: c.Nodes[0], outside: c.Clients[0], dir: t.TempDir(), sockets: t.TempDir(), ports: []port{http, dns}, lastPorts: map[string]*uint16{}}
	m.client = m.node.Pod(t, "client")
	for name, node := range map[string]*cluster.Node{"web-1": m.node, "web-2": c.Nodes[1], "web-3": c.Nodes[1]} {
		pod := node.Pod(t, name)
		pod.Serve(t, cluster.TCP, http.Target)
		pod.Serve(t, cluster.UDP, dns.Target)
	}
	services := manifest.Maker{Cluster: c, Ports: defaultPorts}
	m.svc = services.Service(`
metadata: {name: moves}
spec:
  type: NodePort
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: dns, protocol: UDP, port: 80, targetPort: 5353}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	m.small = services.Service(`
metadata: {name: small}
spec: {type: NodePort, ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [web-1]}, {addresses: [web-2]}]`)
	m.apply(t, m.svc)
	return m
}

func (m *moveStage) apply(t *testing.T, svc service) {
	t.Helper()
	writeManifests(t, m.dir, svc.YAML())
}

// addOthers replaces the Services that have no clients. Each has ten endpoints.
func (m *moveStage) addOthers(t *testing.T, n int) int {
	t.Helper()
	var b strings.Builder
	b.WriteString("# other Services\n")
	for i := range n {
		fmt.Fprintf(&b, `---
{apiVersion: v1, kind: Service, metadata: {name: other-%[1]d, namespace: default}, spec: {clusterIP: 10.97.%[2]d.%[3]d, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: other-%[1]d, namespace: default, labels: {kubernetes.io/service-name: other-%[1]d}},
 addressType: IPv4, ports: [{port: 8080}], endpoints: [`, i, i/250, i%250)
		for e := range 10 {
			fmt.Fprintf(&b, "{addresses: [10.%d.%d.%d]}, ", 128+e, i/250, i%250)
		}
		b.WriteString("]}\n")
	}
	writeManifest(t, m.dir, "others", b.String())
	return n
}

// command leaves the rules in nftables after a restart, too, because nothing separates the old rules from the new ones there.
func (m *moveStage) command(t *testing.T, node *cluster.Node, flags ...string) []string {
	return onManifests(t, node, "run", m.dir, append([]string{"--cluster-cidr", podCIDRs, "--conntrack-max-per-core", "0", "--rules", "nftables", "--status-socket", m.socket(node)},
		flags...)...)
}

func (m *moveStage) socket(node *cluster.Node) string {
	return filepath.Join(m.sockets, node.Name, "agent.sock")
}

func (m *moveStage) start(t *testing.T, flags ...string) *cluster.Process {
	t.Helper()
	agent := m.node.MustStart(t, m.command(t, m.node, flags...)...)
	agent.AwaitLog(t, patience, "initial sync complete")
	return agent
}

// balancing is a chain that exists while nftables balances.
const balancing = "balance4"

// balances checks what the node uses for new connections.
func (m *moveStage) balances(t *testing.T, plane string) {
	t.Helper()
	chains := m.node.MustRun(t, "nft", "list", "chains")
	if balances := strings.Contains(chains, balancing); balances != (plane == "nftables") {
		t.Errorf("want %s; the chains are\n%s", plane, chains)
	}
	status, _ := m.node.Run(cluster.AgentBinary(t), "status", "--status-socket", m.socket(m.node)) // its exit status tells that there are problems
	if !regexp.MustCompile(`data plane +` + plane + ` `).MatchString(status) {
		t.Errorf("want %s; status is\n%s", plane, status)
	}
}

func (m *moveStage) paths() map[*cluster.Host][]string {
	return map[*cluster.Host][]string{
		m.client.Host: {m.svc.At(cluster.V4, http), m.svc.At(cluster.V6, http)},
		m.outside:     {m.svc.AtNode(m.node, cluster.V4), m.svc.AtNode(m.node, cluster.V6)},
		m.node.Host:   {m.svc.At(cluster.V4, http)},
	}
}

func (m *moveStage) openFlows(t *testing.T) (all []*cluster.Flows) {
	t.Helper()
	for from, addrs := range m.paths() {
		for _, at := range addrs {
			for _, p := range m.ports {
				from.Await(t, patience, p.Protocol, at)
				all = append(all, from.OpenFlows(t, 10, p.Protocol, at, cluster.FlowConfig{Every: time.Second, Within: patience, Max: time.Hour}))
			}
		}
	}
	return all
}

// keepAsking opens new connections. A client repeats a lost packet after a second, so an answer that takes almost as long is a failure. The clients do
// not reuse source ports: killedAtEachWrite unloads IPVS, while conntrack still has the connections that IPVS has balanced.
func (m *moveStage) keepAsking(t *testing.T) (all []*requests) {
	t.Helper()
	ask := func(from *cluster.Host, p port, at string) {
		from.Await(t, patience, p.Protocol, at)
		what := fmt.Sprintf("%s -> %s %s", from.Name, at, p.Protocol)
		last := m.lastPorts[what]
		if last == nil {
			last = new(uint16)
			*last, m.lastPorts[what] = 12_000, last // the agent uses ports below
		}
		all = append(all, keepCalling(t, what, func() cluster.Result {
			*last++
			return from.Probe(p.Protocol, at, cluster.Within(900*time.Millisecond), cluster.FromPort(*last))
		}))
	}
	for from, addrs := range m.paths() {
		for _, at := range addrs {
			for _, p := range m.ports {
				ask(from, p, at)
			}
		}
	}
	return all
}

func (m *moveStage) unharmed(t *testing.T, all []*cluster.Flows) string {
	t.Helper()
	flows, sent := 0, 0
	for _, f := range all {
		f.AwaitRound(t, patience)
		report := f.Report()
		if !report.Unharmed() {
			t.Error(report)
		}
		flows, sent = flows+report.Flows, sent+report.Sent
	}
	return fmt.Sprintf("%d open connections with %d requests, none lost", flows, sent)
}

// killedAtEachWrite kills the agent after its n-th write of a move, for every n. The next agent finishes the move, and no new connection fails.
func (m *moveStage) killedAtEachWrite(t *testing.T) {
	m.svc, m.ports = m.small, []port{http}
	m.apply(t, m.svc)
	m.addOthers(t, 0)
	want := ""
	for n := 1; ; n++ {
		mustStop(t, m.start(t, "--data-plane=nftables"))
		m.node.MustRun(t, "ipvsadm", "-C")
		show := cluster.HideModule(t, "ip_vs")
		asking := m.keepAsking(t)
		agent := m.node.MustStart(t, cluster.KilledAfter(n, m.command(t, m.node)...)...)
		agent.AwaitLog(t, patience, "initial sync complete")
		show()
		if out, err := exec.Command("modprobe", "ip_vs").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		cluster.Eventually(t, patience, "the agent is killed, or has moved", func() error {
			if agent.Running() && !strings.Contains(agent.Log(), "moved from nftables to IPVS") {
				return fmt.Errorf("the agent has not moved:\n%s", agent.Log())
			}
			return nil
		})
		killed := !agent.Running()
		agent.Kill()
		if killed {
			mustStop(t, m.start(t))
		}
		got := kernelState(t, m.node)
		if want == "" {
			want = got
		} else if got != want {
			t.Fatalf("killed after write %d: the kernel's state differs:\n%s", n, got)
		}
		for _, a := range asking {
			a.mustNeverFail(t)
		}
		if !killed {
			t.Attr("figure", fmt.Sprintf("kills after each of %d writes", n-1))
			return
		}
	}
}

func mustStop(t *testing.T, agent *cluster.Process) {
	t.Helper()
	if err := agent.Stop(patience); err != nil {
		t.Error(err)
	}
}
