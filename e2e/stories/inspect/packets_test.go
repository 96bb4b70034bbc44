package inspect

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
)

// aboutPackets runs doctor. It returns doctor's findings about a subject, and the packet tests without a result.
func (s *stage) aboutPackets(t *testing.T, subject string, flags ...string) (found, unchecked string) {
	t.Helper()
	report := runJSON[doctor.Report](t, s, append([]string{"doctor"}, flags...)...)
	var all []string
	for _, f := range warnings(report) {
		if f.Subject == subject {
			all = append(all, f.Summary())
		}
	}
	other := func(text string) bool {
		return !strings.HasPrefix(text, "large packets") && !strings.HasPrefix(text, "duplicate addresses")
	}
	return strings.Join(all, "\n"), strings.Join(slices.DeleteFunc(report.Unchecked, other), "\n")
}

// TestDoctorFindsLostLargePackets checks that doctor reports the loss of large packets between nodes, and nothing if they arrive.
func TestDoctorFindsLostLargePackets(t *testing.T) {
	s := newStage(t)
	s.far.Serve(t, cluster.UDP, 8080)
	const quiet = `nft 'add table inet quiet; add chain inet quiet output { type filter hook output priority 0; }
		add rule inet quiet output icmp type destination-unreachable drop
		add rule inet quiet output icmpv6 type packet-too-big drop'`
	large := func(proto cluster.Protocol, to string, size int) func() bool {
		return func() bool { return s.client.ProbeLarge(proto, to, size, cluster.Within(3*time.Second)) == nil }
	}
	service, pod := large(cluster.TCP, farIP+":80", 20_000), large(cluster.UDP, s.far.At(cluster.V4, 8080), 1400)
	for _, c := range []struct {
		name        string
		on          *cluster.Host
		spoil, mend string
		works       func() bool
		healthy     bool
		unchecked   string
	}{
		{"healthy", s.node.Host, "", "", service, true, ""},
		{"a smaller MTU between the nodes", s.Router, "ip link set node-2 mtu 900", "ip link set node-2 mtu 1500", pod, false, ""},
		{"a router that sends no ICMP messages", s.Nodes[1].Host, "ip link set " + s.far.Veth + " mtu 1300; " + quiet,
			"ip link set " + s.far.Veth + " mtu 1500; nft delete table inet quiet", service, false, ""},
		{"a pod with a smaller MTU, which TCP announces", s.far.Host, "ip link set eth0 mtu 1300", "ip link set eth0 mtu 1500", service, true, ""},
		{"no answers to echo requests", s.far.Host, "sysctl -qw net.ipv4.icmp_echo_ignore_all=1 net.ipv6.icmp.echo_ignore_all=1",
			"sysctl -qw net.ipv4.icmp_echo_ignore_all=0 net.ipv6.icmp.echo_ignore_all=0", service, true, "large packets to other nodes: "},
		{"path MTU discovery", s.Nodes[1].Host, "ip link set " + s.far.Veth + " mtu 1300", "ip link set " + s.far.Veth + " mtu 1500", service, true, ""},
	} {
		c.on.MustRun(t, "sh", "-ec", c.spoil)
		found, unchecked := s.aboutPackets(t, "path MTU")
		if works := c.works(); works != c.healthy {
			t.Errorf("%s: a large request works: %t", c.name, works)
		}
		if c.healthy != (found == "") || (c.unchecked == "") != (unchecked == "") || !strings.Contains(unchecked, c.unchecked) {
			t.Errorf("%s: doctor reports %q; not checked: %q", c.name, found, unchecked)
		}
		for _, end := range []string{s.far.V4.String(), s.far.V6.String()} {
			if !c.healthy && !strings.Contains(found, end+" (pod default/far, node node-2) through eth0") {
				t.Errorf("%s: doctor reports %q without %s", c.name, found, end)
			}
		}
		if found, _ := s.aboutPackets(t, "path MTU", "--connect=false"); found != "" {
			t.Errorf("%s: with --connect=false, doctor reports %q", c.name, found)
		}
		c.on.MustRun(t, "sh", "-ec", c.mend)
	}
}

// TestDoctorFindsDuplicateAddresses checks that doctor reports another machine with the node's address, but not a node that has two interfaces.
func TestDoctorFindsDuplicateAddresses(t *testing.T) {
	s := newStage(t)
	other := s.Nodes[1]
	s.Router.MustRun(t, "sh", "-ec", "ip link add second type veth peer name eth1 netns "+s.node.Namespace()+"; ip link set second up master underlay")
	s.node.MustRun(t, "ip", "link", "set", "eth1", "up")
	if found, unchecked := s.aboutPackets(t, "duplicate addresses"); found != "" || unchecked != "" {
		t.Errorf("doctor reports %q for the node's own interface; not checked: %q", found, unchecked)
	}
	_, mac, _ := strings.Cut(other.MustRun(t, "ip", "-o", "link", "show", "eth0"), "link/ether ")
	mac, _, _ = strings.Cut(mac, " ")
	other.MustRun(t, "ip", "addr", "add", s.node.V4.String()+"/32", "dev", "lo")
	if found, _ := s.aboutPackets(t, "duplicate addresses"); !strings.Contains(found, s.node.V4.String()+" on eth0") || mac == "" || !strings.Contains(found, mac) {
		t.Errorf("doctor reports %q, want %s", found, mac)
	}
	if found, _ := s.aboutPackets(t, "duplicate addresses", "--connect=false"); found != "" {
		t.Errorf("with --connect=false, doctor reports %q", found)
	}
}
