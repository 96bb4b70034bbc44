package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
)

// TestDoctorFollowsLinks: no rule stops the packets, but an interface, a neighbor or a route on the way loses them.
func TestDoctorFollowsLinks(t *testing.T) {
	s := newStage(t)
	if found := warnings(runJSON[doctor.Report](t, s, "doctor")); len(found) > 0 {
		t.Fatalf("doctor reports on a healthy node: %v", found)
	}
	for _, c := range []struct {
		name, spoil, mend string
		from              *cluster.Host
		to, want          string
	}{
		{"lossy queue", "tc qdisc add dev eth0 root netem loss 100%", "tc qdisc del dev eth0 root", s.client.Host, farIP, "eth0 has the queueing discipline netem"},
		{"wrong MAC address of a router", "ip neigh replace 192.168.50.12 lladdr 02:00:00:00:00:99 dev eth0 nud permanent", "ip neigh del 192.168.50.12 dev eth0",
			s.client.Host, farIP, "its MAC address 02:00:00:00:00:99 may be wrong"},
		{"overlapping network", "ip link add docker9 type bridge; ip addr add 10.244.2.1/26 dev docker9; ip link set docker9 up", "ip link del docker9",
			s.client.Host, farIP, "leads to docker9"},
		{"local route of the node", "ip route del local 192.168.50.11 dev eth0 table local",
			"ip route add local 192.168.50.11 dev eth0 table local proto kernel scope host src 192.168.50.11", s.outside, farIP, "192.168.50.11 on eth0"},
	} {
		s.node.MustRun(t, "sh", "-ec", c.spoil)
		if got := c.from.Probe(cluster.TCP, c.to+":80", cluster.Within(2*time.Second)); got.Outcome == cluster.Answered {
			t.Errorf("%s: the client's request was %s", c.name, got)
		}
		if found := warnings(runJSON[doctor.Report](t, s, "doctor")); !strings.Contains(fmt.Sprint(found), c.want) {
			t.Errorf("%s: doctor reports %v, want %q", c.name, found, c.want)
		}
		s.node.MustRun(t, "sh", "-ec", c.mend)
	}
}
