// Command demo demonstrates kube-ipvs with two nodes and some pods, each in a network namespace. It runs the real agent
// on both nodes with a directory of manifests, and sends real requests. It needs root and a kernel with IPVS; `make
// demo` provides both. With DATA_PLANE=nftables it needs no IPVS. With DATA_PLANE=userspace it runs one agent on this
// machine, without root.
package main

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	serviceIP = "10.96.0.10"
	podCIDR   = "10.244.0.0/16"
	podPort   = 8080
	// patience is long enough for slow machines.
	patience = 60 * time.Second
)

var service = fmt.Sprintf("%s:80", serviceIP)

func main() {
	agent := flag.String("agent", "", "path of the kube-ipvs binary")
	flag.Parse()
	if err := run(*agent); err != nil {
		fmt.Fprintln(os.Stderr, "demo failed:", err)
		os.Exit(1)
	}
}

func run(agent string) error {
	if os.Getenv("KUBE_IPVS_DATA_PLANE") == kernel.DataPlaneUserspace {
		d := &local{agent: agent}
		defer d.close()
		return follow(d.steps(), d.logs)
	}
	d := &demo{agent: agent}
	defer d.close()
	return follow(d.steps(), d.agentLogs)
}

type step struct {
	title string
	do    func() error
}

func follow(steps []step, logs func()) error {
	started := time.Now()
	for i, step := range steps {
		fmt.Printf("\n[%d] %s\n", i+1, step.title)
		if err := step.do(); err != nil {
			logs()
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	fmt.Printf("\nEverything worked, in %s.\n", time.Since(started).Round(100*time.Millisecond))
	return nil
}

func (d *demo) steps() []step {
	return []step{
		{"Two nodes and three pods, each in its own network namespace", d.setUp},
		{"Manifests of a Service whose endpoints are the three pods", d.writeFirst},
		{"The agent on both nodes: kube-ipvs run --manifests DIR --cluster-cidr " + podCIDR, d.startAgents},
		{"A pod on node-1 sends 30 requests to the Service's address " + service, d.balanced},
		{"A process on the host of node-2 does the same", d.fromHost},
		{"Scale up: two more pods", d.scaleUp},
		{"A pod dies and is no longer ready", d.fail},
		{"The agents are killed (kill -9): the kernel keeps serving", d.killAgents},
	}
}

type demo struct {
	agent   string
	cluster *cluster.Cluster
	client  *cluster.Pod
	pods    []*cluster.Pod
	dead    *cluster.Pod
	servers map[*cluster.Pod]*cluster.Server
	dir     string
	agents  []*cluster.Process
}

func (d *demo) setUp() (err error) {
	if d.cluster, err = cluster.Create(cluster.Config{Name: "demo", Nodes: 2, Clients: -1, Families: cluster.IPv4Only}); err != nil {
		return err
	}
	d.servers = map[*cluster.Pod]*cluster.Server{}
	if d.client, err = d.cluster.Nodes[0].AddPod("client"); err != nil {
		return err
	}
	for i := range 3 {
		if err := d.addPod(d.cluster.Nodes[i%2]); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) addPod(node *cluster.Node) error {
	pod, err := node.AddPod(fmt.Sprintf("web-%d", len(d.pods)+1))
	if err != nil {
		return err
	}
	if d.servers[pod], err = pod.Listen(cluster.TCP, podPort); err != nil {
		return err
	}
	d.pods = append(d.pods, pod)
	fmt.Printf("    %-6s %-11s on %s\n", pod.Name, pod.V4, node.Name)
	return nil
}

const serviceManifest = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  clusterIP: ` + serviceIP + `
  ports:
  - {name: http, port: 80}
`

func (d *demo) writeFirst() (err error) {
	if d.dir, err = os.MkdirTemp("", "kube-ipvs-demo-"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.dir, "service.yaml"), []byte(serviceManifest), 0o644); err != nil {
		return err
	}
	show(serviceManifest)
	return d.writeEndpoints()
}

// writeEndpoints acts as the control plane when the state of pods changes.
func (d *demo) writeEndpoints() error {
	var endpoints strings.Builder
	for _, pod := range d.pods {
		fmt.Fprintf(&endpoints, "- {addresses: [%s], nodeName: %s, conditions: {ready: %t}}\n", pod.V4, pod.Node.Name, pod != d.dead)
	}
	return replaceEndpoints(d.dir, podPort, endpoints.String())
}

func replaceEndpoints(dir string, port int, endpoints string) error {
	slice := fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: default
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports:
- {name: http, port: %d}
endpoints:
%s`, port, endpoints)
	// A rename prevents the agent from reading half a file.
	aside := filepath.Join(dir, ".endpoints.new")
	if err := os.WriteFile(aside, []byte(slice), 0o644); err != nil {
		return err
	}
	show("endpoints:\n" + endpoints)
	return os.Rename(aside, filepath.Join(dir, "endpoints.yaml"))
}

func show(text string) {
	for line := range strings.Lines(text) {
		fmt.Print("    | ", line)
	}
}

func (d *demo) startAgents() error {
	for _, node := range d.cluster.Nodes {
		agent, err := node.Start(append([]string{d.agent, "run", "--manifests", d.dir, "--hostname-override", node.Name, "--cluster-cidr", podCIDR},
			cluster.DataPlaneFlags()...)...)
		if err != nil {
			return err
		}
		d.agents = append(d.agents, agent)
	}
	if err := d.awaitTable(3); err != nil {
		return err
	}
	return d.table()
}

// awaitTable waits until both nodes have the given number of destinations that accept new connections.
func (d *demo) awaitTable(destinations int) error {
	start := time.Now()
	for _, node := range d.cluster.Nodes {
		err := cluster.Poll(patience, func() error {
			weights, err := node.Weights(netip.MustParseAddrPort(service))
			if err != nil {
				return err
			}
			taking := 0
			for _, w := range weights {
				taking += w
			}
			if taking != destinations {
				return fmt.Errorf("%s has %d destinations, want %d: %v", node.Name, taking, destinations, weights)
			}
			_, err = node.Run("ip", "addr", "show", "dev", "kube-ipvs0", "to", serviceIP)
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Printf("    both nodes synced after %s\n", time.Since(start).Round(10*time.Millisecond))
	return nil
}

func (d *demo) table() error {
	command, shown := []string{"ipvsadm", "-Ln"}, "ipvsadm -Ln"
	if cluster.Balancing() {
		command, shown = []string{"nft", "list", "map", "inet", "kube-ipvs", "slots4"}, "nft list map inet kube-ipvs slots4"
	}
	out, err := d.cluster.Nodes[0].Run(command...)
	if err != nil {
		return err
	}
	fmt.Println("    node-1# " + shown)
	show(out)
	return nil
}

func (d *demo) balanced() error { return d.request(d.client.Host, 30, len(d.pods)) }

func (d *demo) fromHost() error { return d.request(d.cluster.Nodes[1].Host, 6, len(d.pods)) }

// request sends requests one after another. It checks that the pods receive equal numbers of requests or, with
// nftables, random numbers.
func (d *demo) request(from *cluster.Host, n, pods int) error {
	counts := map[string]int{}
	for range n {
		r := from.Probe(cluster.TCP, service, cluster.Within(10*time.Second))
		if r.Outcome != cluster.Answered {
			return fmt.Errorf("%s -> %s: %s", from.Name, service, r)
		}
		counts[r.Reply.Server]++
		if n <= 6 {
			fmt.Printf("    answered by %s, which saw the source %s\n", r.Reply.Server, r.Reply.Source)
		}
	}
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("    %-6s answered %2d  %s\n", name, counts[name], strings.Repeat("#", counts[name]))
		if counts[name] != n/pods && !cluster.Balancing() {
			return fmt.Errorf("round robin gave %s %d of %d requests, want %d", name, counts[name], n, n/pods)
		}
	}
	if len(names) != pods && !cluster.Balancing() {
		return fmt.Errorf("%d pods answered, want %d", len(names), pods)
	}
	return nil
}

func (d *demo) scaleUp() error {
	for _, node := range d.cluster.Nodes {
		if err := d.addPod(node); err != nil {
			return err
		}
	}
	return d.change(len(d.pods))
}

func (d *demo) fail() error {
	d.dead = d.pods[1]
	d.servers[d.dead].Close()
	fmt.Printf("    %s stops answering\n", d.dead.Name)
	return d.change(len(d.pods) - 1)
}

func (d *demo) change(pods int) error {
	if err := d.writeEndpoints(); err != nil {
		return err
	}
	if err := d.awaitTable(pods); err != nil {
		return err
	}
	if err := d.table(); err != nil {
		return err
	}
	return d.request(d.client.Host, 5*pods, pods)
}

func (d *demo) killAgents() error {
	for _, agent := range d.agents {
		agent.Kill()
	}
	return d.request(d.client.Host, 20, len(d.pods)-1)
}

func (d *demo) agentLogs() {
	for _, agent := range d.agents {
		fmt.Fprintf(os.Stderr, "--- log of %s\n%s", agent.Name, agent.Log())
	}
}

func (d *demo) close() {
	if d.cluster != nil {
		if err := d.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "clean up:", err)
		}
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir)
	}
}
