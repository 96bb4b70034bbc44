package services

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

const reservedPorts = "/proc/sys/net/ipv4/ip_local_reserved_ports"

// sourcePorts is a node whose Service trap has a node port, and servers that the node and others connect to.
type sourcePorts struct {
	*cluster.Cluster
	node     *cluster.Node
	outside  *cluster.Host
	pods     map[string]*cluster.Pod
	services map[string]service
	trap     uint16
	dir      string
	texts    map[string]string
	flags    []string
	agent    *cluster.Process
}

func newSourcePorts(t *testing.T) *sourcePorts {
	labtest.Need(t)
	c := cluster.New(t, cluster.Config{Name: "ports", Nodes: 2})
	s := &sourcePorts{
		Cluster: c, node: c.Nodes[0], outside: c.Clients[0], pods: map[string]*cluster.Pod{}, services: map[string]service{}, texts: map[string]string{},
		dir: t.TempDir(),
	}
	s.flags = append([]string{"--cluster-cidr", podCIDRs, "--ipvs-sync-period", "2s", "--status-socket", filepath.Join(t.TempDir(), "run", "agent.sock")}, inNamespace...)
	maker := manifest.Maker{Cluster: c, Ports: "ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, protocol: UDP, port: 80, targetPort: 5353}]"}
	for name, node := range map[string]*cluster.Node{"trap": c.Nodes[1], "far": c.Nodes[1], "near": s.node, "plain": c.Nodes[1]} {
		pod := node.Pod(t, name)
		pod.Serve(t, cluster.TCP, http.Target)
		pod.Serve(t, cluster.UDP, dns.Target)
		s.pods[name] = pod
		svc := maker.Service(strings.ReplaceAll("\nmetadata: {name: NAME}\nspec: {type: NodePort}\n---\nendpoints: [{addresses: [NAME]}]", "NAME", name))
		s.services[name], s.texts[name] = svc, svc.YAML()
	}
	s.outside.Serve(t, cluster.TCP, http.Target)
	s.outside.Serve(t, cluster.UDP, dns.Target)
	c.RouteServiceCIDRVia(t, s.node)
	s.trap = s.services["trap"].NodePort()
	return s
}

func (s *sourcePorts) write(t *testing.T, names ...string) {
	t.Helper()
	text := nodeManifest(s.node)
	for _, name := range names {
		text += s.texts[name]
	}
	writeManifests(t, s.dir, text)
}

func (s *sourcePorts) start(t *testing.T, flags ...string) {
	t.Helper()
	s.agent = s.node.MustStart(t, onManifests(t, s.node, "run", s.dir, append(s.flags, flags...)...)...)
	s.agent.AwaitLog(t, patience, "initial sync complete")
}

func (s *sourcePorts) stop(t *testing.T) {
	t.Helper()
	if err := s.agent.Stop(patience); err != nil {
		t.Error(err)
	}
}

func (s *sourcePorts) reserve(t *testing.T, list string) {
	t.Helper()
	s.node.MustRun(t, "sh", "-c", "echo '"+list+"' > "+reservedPorts)
}

func (s *sourcePorts) awaitReserved(t *testing.T, want, why string) {
	t.Helper()
	cluster.Eventually(t, patience, why, func() error {
		got, err := s.node.Run("cat", reservedPorts)
		if got = strings.TrimSpace(got); err == nil && got != want {
			err = fmt.Errorf("%q is reserved, want %q", got, want)
		}
		return err
	})
}

// everyPair calls fn for each family, once for TCP and once for UDP.
func (s *sourcePorts) everyPair(fn func(f cluster.Family, p port)) {
	for _, f := range s.FamilyList() {
		fn(f, http)
		fn(f, dns)
	}
}

// TestOwnConnectionsFromANodePort: if the node's own connection has a node port as its source port, IPVS sends the reply to the node port's
// Service (kubernetes/kubernetes#111682). nftables balances only new connections, so the reply arrives.
func TestOwnConnectionsFromANodePort(t *testing.T) {
	s := newSourcePorts(t)
	cluster.NeedKernel(t, "the agent listens at the node port, so no other socket gets it")
	s.write(t, "trap")
	s.start(t)
	const soon = 3 * time.Second
	s.everyPair(func(f cluster.Family, p port) {
		at := s.pods["plain"].At(f, p.Target)
		wantReply(t, s.node.Get(t, p.Protocol, at, slowly), "plain", s.node.Addr(f))
		if from := cluster.FromPort(s.trap); cluster.Balancing() {
			wantReply(t, s.node.Get(t, p.Protocol, at, from, slowly), "plain", s.node.Addr(f))
		} else {
			s.node.MustTimeout(t, p.Protocol, at, from, cluster.Within(soon))
		}
	})
}

// TestReservedNodePorts: the kernel chooses no node port as the source port of the node's own connections, and other programs' reserved ports
// stay as they are.
func TestReservedNodePorts(t *testing.T) {
	s := newSourcePorts(t)
	// The list of the other program is longer than a page of memory, which the kernel writes in two steps.
	var odd []string
	for port := 10001; port < 13001; port += 2 {
		odd = append(odd, fmt.Sprint(port))
	}
	others := strings.Join(odd, ",")
	s.reserve(t, others)
	// The kernel can choose only the node port and the next port.
	s.node.MustRun(t, "sysctl", "-q", fmt.Sprintf("net.ipv4.ip_local_port_range=%d %d", s.trap, s.trap+1))
	with := func(others string) string {
		if cluster.Balancing() {
			return others
		}
		return others + "," + fmt.Sprint(s.trap)
	}
	s.write(t, "trap")
	s.start(t)
	s.awaitReserved(t, with(others), "the node port is reserved")
	if !cluster.Balancing() {
		s.onePortIsLeft(t)
	}

	s.reserve(t, "8080")
	s.awaitReserved(t, with("8080"), "the node port is reserved again after another program has replaced the list")
	s.write(t)
	s.awaitReserved(t, "8080", "the port is free after its Service is deleted")
	s.write(t, "trap")
	s.awaitReserved(t, with("8080"), "the port of a new Service is reserved")
	s.stop(t)
	s.awaitReserved(t, with("8080"), "the port stays reserved without the agent")
	s.start(t, "--reserve-node-ports=false")
	s.awaitReserved(t, "8080", "an agent that does not reserve ports releases those of the one before")
	s.stop(t)
	s.start(t)
	s.awaitReserved(t, with("8080"), "the node port is reserved")
	s.stop(t)
	s.node.MustRun(t, cluster.AgentBinary(t), "cleanup")
	s.awaitReserved(t, "8080", "cleanup leaves the other program's ports")
}

// onePortIsLeft checks that the node's sockets get the one port that is not a node port.
func (s *sourcePorts) onePortIsLeft(t *testing.T) {
	t.Helper()
	s.everyPair(func(f cluster.Family, p port) {
		at := s.pods["plain"].At(f, p.Target)
		first := s.node.Open(t, p.Protocol, at, slowly)
		defer first.Close()
		if first.Local.Port() != s.trap+1 {
			t.Errorf("%s %s: the kernel chose port %d", f, p.Protocol, first.Local.Port())
		}
		second, err := s.node.Dial(p.Protocol, at, slowly)
		if err == nil {
			t.Errorf("%s %s: a second socket got port %d, although only one port is left", f, p.Protocol, second.Local.Port())
			second.Close()
		}
	})
}

// TestMasqueradingToANodePort: a masqueraded connection may have a node port as its source port. conntrack restores the client's address in its
// replies before they can reach IPVS, so they arrive. kubernetes/kubernetes#139276 assumes that they do not.
func TestMasqueradingToANodePort(t *testing.T) {
	s := newSourcePorts(t)
	s.write(t, "trap", "far", "near", "plain")
	s.start(t)
	s.masquerade(t)
	s.everyPair(func(f cluster.Family, p port) {
		for name, c := range map[string]struct {
			from       *cluster.Host
			to, server string
		}{
			"the node to a ClusterIP, endpoint on another node": {s.node.Host, s.services["far"].At(f, p), "far"},
			"the node to a ClusterIP, endpoint on this node":    {s.node.Host, s.services["near"].At(f, p), "near"},
			"a client to a node port":                           {s.outside, s.services["plain"].AtNode(s.node, f), "plain"},
			"a client to the same node port":                    {s.outside, s.services["trap"].AtNode(s.node, f), "trap"},
			"a pod to a host outside the cluster":               {s.pods["near"].Host, s.outside.At(f, p.Target), s.outside.Name},
		} {
			got := c.from.Get(t, p.Protocol, c.to, slowly)
			wantReply(t, got, c.server, s.node.Addr(f))
			if got.Port != s.trap {
				t.Errorf("%s %s, %s: the server sees port %d, want %d", f, p.Protocol, name, got.Port, s.trap)
			}
		}
	})
}

// masquerade adds rules that always choose the node port, before the agent's. Masquerading chooses it for one connection of 64,512.
func (s *sourcePorts) masquerade(t *testing.T) {
	t.Helper()
	rules := "table inet early {\n chain postrouting {\n type nat hook postrouting priority srcnat - 20\n"
	s.everyPair(func(f cluster.Family, p port) {
		family := map[cluster.Family]string{cluster.V4: "ip", cluster.V6: "ip6"}[f]
		rules += fmt.Sprintf("meta nfproto ipv%d %s dport %d snat %s to %s\n", f, strings.ToLower(string(p.Protocol)), p.Target, family,
			netip.AddrPortFrom(s.node.Addr(f), s.trap))
	})
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(rules+"}\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.node.MustRun(t, "nft", "-f", file)
}
