package inspect

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

const vpn = "ip link add vpn type dummy; ip link set vpn up; "

// TestDoctorFindsFaultsOfSingleClients: only one client has no connection, and it is neither the node nor an endpoint. doctor must name the cause.
func TestDoctorFindsFaultsOfSingleClients(t *testing.T) {
	s := newStage(t)
	client := s.client.V4.String()
	for _, c := range []struct {
		spoil, mend string
		from        *cluster.Host
		to, want    string
	}{
		{
			`nft 'add table inet guard; add chain inet guard bad; add rule inet guard bad drop; add map inet guard from { type ifname : verdict; }'
			nft 'add element inet guard from { "pod-client" : goto bad }; add chain inet guard pre { type filter hook prerouting priority -350; }'
			nft 'add rule inet guard pre iifname vmap @from'`, "nft delete table inet guard", s.client.Host, plainIP, "nft -a list chain inet guard bad",
		},
		{"iptables -I FORWARD -o pod-client -j DROP", "iptables -D FORWARD -o pod-client -j DROP", s.client.Host, plainIP, "-o pod-client -j DROP"},
		{"ip link add dup type dummy; ip link set dup up; ip addr add " + client + "/32 dev dup", "ip link del dup", s.client.Host, plainIP, "is also an address of dup"},
		{
			"sysctl -w net.ipv4.conf.pod-client.proxy_arp=0; ip -n " + s.client.Namespace() + " neigh flush all", "sysctl -w net.ipv4.conf.pod-client.proxy_arp=1", s.client.Host,
			plainIP, "net/ipv4/conf/pod-client/proxy_arp = 0",
		},
		{
			"ip addr del fe80::1/64 dev pod-client; ip -6 -n " + s.client.Namespace() + " neigh flush all", "ip addr add fe80::1/64 dev pod-client nodad", s.client.Host,
			"[" + plain6IP + "]", "lacks the address fe80::1",
		},
		{
			vpn + "ip route add 198.51.100.0/24 dev vpn; sysctl -w net.ipv4.conf.eth0.rp_filter=1", "ip link del vpn; sysctl -w net.ipv4.conf.eth0.rp_filter=0", s.outside,
			plainIP, "packets to 198.51.100.0/24 leave through vpn",
		},
	} {
		answered := func(patience time.Duration) bool {
			return c.from.Probe(cluster.TCP, c.to+":80", cluster.Within(patience)).Outcome == cluster.Answered
		}
		for range 3 { // one connection to each endpoint
			if !answered(patience) {
				t.Fatal("on a healthy node, a request was not answered")
			}
		}
		if s.reports(t, c.want) {
			t.Fatalf("doctor reports %q on a healthy node", c.want)
		}
		s.node.MustRun(t, "sh", "-ec", c.spoil)
		for range 3 {
			if answered(2 * time.Second) {
				t.Errorf("despite %q, a request was answered", c.want)
			}
		}
		if !s.reports(t, c.want) {
			t.Errorf("doctor does not report %q", c.want)
		}
		s.node.MustRun(t, "sh", "-ec", c.mend)
	}
}

// TestDoctorFindsRepliesThatTakeAVPN: a VPN adds routes to all addresses. Clients outside the VPN get no replies.
func TestDoctorFindsRepliesThatTakeAVPN(t *testing.T) {
	s := newStage(t)
	s.node.MustRun(t, "sh", "-ec", vpn+"ip route add 0.0.0.0/1 dev vpn; ip route add 128.0.0.0/1 dev vpn")
	for range 3 { // one connection to each endpoint
		if got := s.node.Probe(cluster.TCP, plainIP+":80", cluster.Within(patience)); got.Outcome != cluster.Answered {
			t.Fatalf("the node's request was %s", got)
		}
	}
	if s.reports(t, "leads to vpn") {
		t.Error("doctor reports the VPN, and no client has a problem with it")
	}
	for range 3 {
		if got := s.outside.Probe(cluster.TCP, plainIP+":80", cluster.Within(2*time.Second)); got.Outcome == cluster.Answered {
			t.Errorf("the request from outside was %s", got)
		}
	}
	if !s.reports(t, "leads to vpn") {
		t.Error("doctor does not report the VPN")
	}
}

// reports reports whether doctor has a finding, other than a notice, with this text.
func (s *stage) reports(t *testing.T, want string) bool {
	t.Helper()
	return slices.ContainsFunc(warnings(runJSON[doctor.Report](t, s, "doctor")), func(f finding.Finding) bool {
		return strings.Contains(strings.Join(append(f.Evidence, f.Problem), "; "), want)
	})
}
