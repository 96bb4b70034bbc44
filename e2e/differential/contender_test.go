package differential

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

const (
	podCIDRs = "10.244.0.0/16,fd00:10:244::/48"
	apiPort  = 6443
	// drainTimeout is short, so that endpoints with open connections expire during the test.
	drainTimeout = "5s"
)

var apiAddress = netip.MustParseAddr("192.168.50.1")

var targetPorts = []int32{8080, 8443}

// contender is one of the two programs, in its own cluster. Both clusters have identical addresses, so the results of
// the programs are directly comparable.
type contender struct {
	*cluster.Cluster
	name    string
	node    *cluster.Node // where the program runs
	pods    []*cluster.Pod
	clients map[string]*cluster.Host
	process *cluster.Process
	env     []string // of the program
	// balancing is true if the program balances with nftables.
	balancing bool
}

func newContender(t *testing.T, name string) *contender {
	t.Helper()
	c := &contender{name: name, Cluster: cluster.New(t, cluster.Config{Name: name, Nodes: 2})}
	c.node = c.Nodes[0]
	for i := range 6 {
		pod := c.Nodes[i/3].Pod(t, fmt.Sprintf("web-%d", i+1))
		for _, port := range targetPorts {
			for _, protocol := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
				pod.Serve(t, protocol, uint16(port))
			}
		}
		c.pods = append(c.pods, pod)
	}
	client := c.node.Pod(t, "client")
	c.clients = map[string]*cluster.Host{
		client.Name:       client.Host,
		c.pods[0].Name:    c.pods[0].Host, // is also an endpoint of Services
		judge.Host:        c.node.Host,
		c.Clients[0].Name: c.Clients[0],
	}
	refuseAlways(t, c.node)
	c.node.AddAddr(t, "eth0", draw.OwnClusterIP().String())
	for _, prefix := range draw.Virtual() {
		c.RouteVia(t, prefix.String(), c.node)
		// A proxy on the other node would bind all virtual addresses. Replies to these addresses would then not leave
		// that node.
		c.Nodes[1].MustRun(t, "ip", "route", "add", "local", prefix.String(), "dev", "lo")
	}
	return c
}

// refuseAlways removes the kernel's limit of one ICMP error per second for each client. With the limit, an SCTP client
// may report a timeout instead of a refusal, depending on its earlier connections.
func refuseAlways(t *testing.T, node *cluster.Node) {
	t.Helper()
	for _, limit := range []string{"net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"} {
		if err := node.SetSysctl(limit, "0"); err != nil {
			t.Fatal(err)
		}
	}
}

// world describes the network for the random objects.
func (c *contender) world() draw.World {
	here, other := draw.SpecialExternal()
	w := draw.World{
		Nodes: []draw.Node{
			{Name: c.Nodes[0].Name, Zone: "zone-a", Internal: []netip.Addr{c.Nodes[0].V4, c.Nodes[0].V6}, External: here},
			{Name: c.Nodes[1].Name, Zone: "zone-b", Internal: []netip.Addr{c.Nodes[1].V4, c.Nodes[1].V6}},
			{Name: "node-3", Zone: "zone-b", External: other,
				Internal: []netip.Addr{netip.MustParseAddr("192.168.50.13"), netip.MustParseAddr("fd00:50::13")}},
		},
		Ports:      targetPorts,
		Interfaces: []netip.Addr{c.node.V4, c.node.V6, draw.OwnClusterIP()},
	}
	places := map[string]draw.Place{judge.Host: draw.OnNode, c.Clients[0].Name: draw.Outside}
	for _, name := range slices.Sorted(maps.Keys(c.clients)) {
		host := c.clients[name]
		w.Clients = append(w.Clients, draw.Client{Name: name, Place: cmp.Or(places[name], draw.InPod), Addrs: []netip.Addr{host.V4, host.V6}})
	}
	for _, p := range c.pods {
		w.Pods = append(w.Pods, draw.Pod{Name: p.Name, Node: p.Node.Name, V4: p.V4, V6: p.V6})
	}
	return w
}

func (c *contender) bound() (map[netip.Addr]bool, error) {
	if !c.process.Running() {
		return nil, fmt.Errorf("%s has ended; its log:\n%s", c.name, c.process.Log())
	}
	addresses := map[netip.Addr]bool{}
	err := c.node.Do(func() error {
		device, err := net.InterfaceByName("kube-ipvs0")
		if err != nil {
			return err
		}
		list, err := device.Addrs()
		for _, a := range list {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				addresses[prefix.Addr()] = true
			}
		}
		return err
	})
	return addresses, err
}

func (c *contender) state() (judge.State, error) {
	table := ""
	if !c.balancing {
		var err error
		if table, err = c.node.Run("ipvsadm", "-Sn"); err != nil {
			return judge.State{}, err
		}
	}
	addresses, err := c.node.Run("ip", "-o", "addr", "show", "dev", "kube-ipvs0")
	if err != nil {
		return judge.State{}, err
	}
	state, err := judge.ParseState(table, addresses)
	if err == nil && c.balancing {
		err = c.addServers(state)
	}
	return state, err
}

func (c *contender) addServers(to judge.State) error {
	servers, err := c.node.VirtualServersIn(true)
	for key, s := range servers {
		protocol, at, _ := strings.Cut(key, " ")
		server := judge.Server{Options: s.Scheduler, Destinations: s.Weights}
		if s.Persistent {
			server.Options += " -p "
		}
		to.Servers[judge.Key{Protocol: corev1.Protocol(protocol), Addr: netip.MustParseAddrPort(at)}] = server
	}
	return err
}

// start starts or restarts the program.
func (c *contender) start(t *testing.T, command cluster.Command) {
	t.Helper()
	if c.process == nil {
		t.Cleanup(func() { c.showLog(t) })
	} else if err := c.process.Stop(30 * time.Second); err != nil {
		t.Logf("  %s: stopped: %v", c.name, err)
	}
	var err error
	if c.process, err = c.node.StartCommand(command); err != nil {
		t.Fatal(err)
	}
}

func (c *contender) showLog(t *testing.T) {
	if t.Failed() {
		log := c.process.Log()
		t.Logf("end of the log of %s:\n%s", c.name, log[max(0, len(log)-8<<10):])
	}
}

func (c *contender) startOurs(t *testing.T, kubeconfig string, nodePorts []string, flags ...string) {
	t.Helper()
	agent := cluster.AgentBinary(t)
	args := []string{agent, "run", "--kubeconfig", kubeconfig, "--hostname-override", c.node.Name,
		"--cluster-cidr", podCIDRs, "--drain-timeout", drainTimeout, "--conntrack-max-per-core", "0"}
	if nodePorts != nil {
		args = append(args, "--nodeport-addresses", strings.Join(nodePorts, ","))
	}
	c.start(t, cluster.Command{Args: append(args, flags...)})
}

// kubeProxyConfig is kube-proxy's default configuration in ipvs mode, with two changes. It leaves the conntrack limits
// alone, because only the initial network namespace may set them. Periodic syncs are rare, because a sync takes seconds
// in an emulated guest.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s, qps: 500, burst: 500}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
ipvs: {minSyncPeriod: 5s, syncPeriod: 15m}
nodePortAddresses: [%s]
`

func (c *contender) startKubeProxy(t *testing.T, kubeconfig string, nodePorts []string) {
	t.Helper()
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	program, err := upstream.Path(root, upstream.KubeProxy)
	if errors.Is(err, upstream.ErrNotBuilt) && os.Getenv(controlplane.RequireVariable) != "1" {
		t.Skipf("SKIPPED, nothing was compared: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeProxyConfig, c.node.Name, podCIDRs, kubeconfig, quoted(nodePorts)), 0o600); err != nil {
		t.Fatal(err)
	}
	if c.env == nil {
		if c.env, err = inMemory(t.TempDir()); err != nil {
			t.Fatal(err)
		}
	}
	c.start(t, cluster.Command{Args: []string{program, "--config", config, "-v=2"}, Env: c.env})
	// kube-proxy registers its handler for Nodes after it starts its informers. It may therefore miss its Node's
	// initial zone, and ignore hints until the zone changes.
	const ready = "Starting node config controller"
	cluster.Eventually(t, patience, "kube-proxy watches its Node", func() error {
		if !strings.Contains(c.process.Log(), ready) {
			return errors.New("no line with " + ready)
		}
		return nil
	})
}

// quoted renders a YAML list with quotes, because IPv6 prefixes contain colons.
func quoted(texts []string) string {
	var list []string
	for _, text := range texts {
		list = append(list, strconv.Quote(text))
	}
	return strings.Join(list, ", ")
}

// relayAPI makes one cluster's API server reachable from the other cluster, at the same address.
func relayAPI(t *testing.T, from, to *contender) {
	t.Helper()
	at := netip.AddrPortFrom(apiAddress, apiPort).String()
	var listen net.Listener
	err := from.Router.Do(func() (err error) {
		listen, err = net.Listen("tcp", at)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listen.Close() })
	go func() {
		for {
			client, err := listen.Accept()
			if err != nil {
				return
			}
			go relay(client, to, at)
		}
	}()
}

func relay(client net.Conn, to *contender, at string) {
	defer client.Close()
	var server net.Conn
	err := to.Router.Do(func() (err error) {
		server, err = net.DialTimeout("tcp", at, 10*time.Second)
		return err
	})
	if err != nil {
		return // the client tries again
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
	}()
	_, _ = io.Copy(client, server)
}
