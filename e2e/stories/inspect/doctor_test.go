package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// damage blocks a client's packets. doctor must report it with this severity, and the problem must contain want.
type damage struct {
	spoil, mend string
	from        *cluster.Host
	severity    finding.Severity
	want        string
}

// damages are faults that no specific check of doctor detects.
func (s *stage) damages() map[string]damage {
	endpoints := fmt.Sprintf("for a in %s %s %s; ", s.here.V4, s.also.V4, s.far.V4)
	return map[string]damage{
		"packets after the third": {
			"nft add table inet guard; nft 'add chain inet guard in { type filter hook input priority -200; }'; nft add rule inet guard in tcp dport 80 ct packets '>' 3 drop",
			"nft delete table inet guard", s.client.Host, finding.Broken, "data packets are stopped",
		},
		"policy": {
			"iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; " +
				"iptables -A INPUT -p tcp --dport 22 -j ACCEPT; iptables -P INPUT DROP",
			"iptables -P INPUT ACCEPT; iptables -D INPUT 2; iptables -D INPUT 2; iptables -D INPUT 2", s.client.Host, finding.Broken, "INPUT",
		},
		"rule behind ours": {
			"iptables -A INPUT -p tcp --dport 80 -j DROP", "iptables -D INPUT -p tcp --dport 80 -j DROP", s.client.Host, finding.Broken, "--dport 80 -j DROP",
		},
		"a route to endpoints": {
			endpoints + "do ip rule add pref 5 to $a prohibit; done", endpoints + "do ip rule del pref 5 to $a prohibit; done",
			s.client.Host, finding.Broken, "packets to endpoint",
		},
		"iptables-legacy": {
			"iptables-legacy -A INPUT -p tcp --dport 80 -j DROP", "iptables-legacy -F; iptables-legacy -X", s.client.Host, finding.Broken, "iptables-legacy",
		},
		"before connection tracking": {
			"iptables -t raw -I PREROUTING -d 10.96.0.0/12 -j DROP", "iptables -t raw -D PREROUTING 1", s.client.Host, finding.Broken, "-d 10.96.0.0/12 -j DROP",
		},
		"addresses that are not local at the interface": {
			"nft add table inet guard; nft 'add chain inet guard pre { type filter hook prerouting priority 0; policy accept; }'; " +
				"nft add rule inet guard pre fib daddr . iif type != '{ local, broadcast, multicast }' drop",
			"nft delete table inet guard", s.client.Host, finding.Broken, "guard",
		},
		"packets with data": {
			"iptables -I FORWARD -p tcp --tcp-flags PSH PSH -j DROP", "iptables -D FORWARD 1", s.client.Host, finding.Broken, "data packets of endpoint",
		},
		"another zone": {
			"iptables -t raw -I PREROUTING -p tcp --sport 8080 -j CT --zone 9", "iptables -t raw -D PREROUTING 1", s.client.Host, finding.Broken, "CT --zone 9",
		},
		"a virtual server for a mark": {
			"ipvsadm -A -f 77 -s rr; iptables -t mangle -I PREROUTING -p tcp -j MARK --set-mark 77", "ipvsadm -D -f 77; iptables -t mangle -D PREROUTING 1",
			s.client.Host, finding.Broken, "ipvsadm -L -f 77",
		},
		"a chain of nftables": {
			"nft add table inet guard; nft 'add chain inet guard in { type filter hook input priority filter + 10; policy accept; }'; " +
				"nft add rule inet guard in ct state established,related accept; nft add rule inet guard in iifname lo accept; " +
				"nft add rule inet guard in tcp dport 22 accept; nft add rule inet guard in reject with icmpx admin-prohibited",
			"nft delete table inet guard", s.client.Host, finding.Warning, "guard",
		},
	}
}

// damagesOfOutput are rules that stop packets only after IPVS has chosen an endpoint.
func (s *stage) damagesOfOutput() map[string]damage {
	return map[string]damage{
		"to the endpoints": {
			"iptables -A OUTPUT -p tcp --dport 8080 -j REJECT", "iptables -D OUTPUT -p tcp --dport 8080 -j REJECT", s.node.Host, finding.Broken,
			"--dport 8080 -j REJECT",
		},
		"a routing rule": {
			"ip route add blackhole default table 100; ip rule add pref 100 from all lookup local; ip rule del pref 0; ip rule add pref 0 to 10.96.0.0/12 lookup 100",
			"ip rule del pref 0; ip rule add pref 0 from all lookup local; ip rule del pref 100; ip route flush table 100", s.client.Host, finding.Broken, "ip rule",
		},
		"a routing rule for replies": {
			"ip rule add pref 50 iif pod-here blackhole; ip rule add pref 50 iif pod-also blackhole; ip rule add pref 50 from " + s.far.V4.String() + " blackhole",
			"ip rule del pref 50; ip rule del pref 50; ip rule del pref 50", s.client.Host, finding.Broken, "replies of endpoint",
		},
		"a routing rule for a mark": {
			"ip route add blackhole default table 100; ip rule add pref 0 fwmark 0x1/0x1 lookup 100; iptables -t mangle -I PREROUTING -d 10.96.0.0/12 -j MARK --set-mark 1",
			"ip rule del fwmark 0x1/0x1; ip route flush table 100; iptables -t mangle -D PREROUTING 1", s.client.Host, finding.Broken, "ip rule",
		},
		"to the endpoints, before IPVS's hook": {
			"iptables -t raw -A OUTPUT -p tcp --dport 8080 -j DROP", "iptables -t raw -D OUTPUT -p tcp --dport 8080 -j DROP", s.node.Host, finding.Broken,
			"--dport 8080 -j DROP",
		},
		"a chain shared by two hooks": {
			"iptables -N PODS; iptables -A PODS -i pod-+ -j ACCEPT; iptables -A OUTPUT -o lo -j ACCEPT; iptables -A OUTPUT -p tcp --dport 8080 -j PODS; " +
				"iptables -A OUTPUT -p tcp --dport 8080 -j DROP; iptables -A INPUT -p tcp --dport 8080 -j PODS",
			"iptables -D INPUT -p tcp --dport 8080 -j PODS; iptables -D OUTPUT -p tcp --dport 8080 -j DROP; iptables -D OUTPUT -p tcp --dport 8080 -j PODS; " +
				"iptables -D OUTPUT -o lo -j ACCEPT; iptables -F PODS; iptables -X PODS", s.client.Host, finding.Broken, "--dport 8080 -j DROP",
		},
	}
}

// TestDoctorFollowsPaths blocks packets. doctor must name the rule that blocks them.
func TestDoctorFollowsPaths(t *testing.T) {
	s := newStage(t)
	if found := pathsFound(t, s); len(found) > 0 {
		t.Fatalf("doctor reports findings on a healthy node: %+v", found)
	}
	all := s.damages()
	maps.Copy(all, s.damagesOfOutput())
	for name, c := range all {
		t.Run(name, func(t *testing.T) { s.spoil(t, c) })
	}
}

func (s *stage) spoil(t *testing.T, c damage) {
	s.node.MustRun(t, "sh", "-ec", c.spoil)
	if got := c.from.Probe(cluster.TCP, plainIP+":80", cluster.Within(2*time.Second)); got.Outcome == cluster.Answered {
		t.Errorf("despite the damage, the client's request was %s", got)
	}
	found := pathsFound(t, s)
	if !slices.ContainsFunc(found, func(f finding.Finding) bool {
		return (f.Severity == c.severity || f.Severity == finding.Broken) && strings.Contains(f.Problem, c.want)
	}) {
		t.Errorf("doctor reports %+v, want a finding that names %q", found, c.want)
	}
	s.node.MustRun(t, "sh", "-ec", c.mend)
	if found := pathsFound(t, s); len(found) > 0 {
		t.Errorf("doctor still reports %+v after the repair", found)
	}
}

// TestDoctorFindsRulesAgainstOneService: foreign rules stop packets to single Services, of which a random sample rarely includes one and
// almost never all.
func TestDoctorFindsRulesAgainstOneService(t *testing.T) {
	s := newStage(t)
	const many = 60
	var more strings.Builder
	for i := range many {
		more.WriteString(s.service(fmt.Sprintf("more-%d", i), fmt.Sprintf("10.96.1.%d", i), "", "", "", s.here, s.far))
	}
	s.apply(t, "more.yaml", more.String())
	cluster.Eventually(t, patience, "the last Service", func() error {
		if got := s.client.Probe(cluster.TCP, fmt.Sprintf("10.96.1.%d:80", many-1), cluster.Within(2*time.Second)); got.Outcome != cluster.Answered {
			return fmt.Errorf("the client got %s", got)
		}
		return nil
	})
	if found := pathsFound(t, s); len(found) > 0 {
		t.Fatalf("on a healthy node: %+v", found)
	}
	s.node.MustRun(t, "sh", "-ec", `
		iptables -t mangle -I INPUT -d 10.96.1.7 -j DROP
		nft add table ip guard; nft 'add chain ip guard in { type filter hook input priority 0; }'
		nft 'add set ip guard blocked { type ipv4_addr . inet_service; }'; nft 'add element ip guard blocked { 10.96.1.8 . 80 }'
		nft 'add rule ip guard in ip daddr . tcp dport @blocked reject'
		ipset create blocked hash:ip; ipset add blocked 10.96.1.9; iptables -t raw -I PREROUTING -m set --match-set blocked dst -j DROP`)
	found := fmt.Sprint(pathsFound(t, s))
	for i, rule := range map[int]string{7: "-d 10.96.1.7/32", 8: "ip guard in", 9: "--match-set blocked"} {
		if !strings.Contains(found, fmt.Sprintf("default/more-%d at", i)) || !strings.Contains(found, rule) {
			t.Errorf("found %s, want a path to more-%d and the rule %q", found, i, rule)
		}
	}
}

// TestDoctorFindsNodesThatFailElsewhere: the fault is in the path to a single endpoint, in a route to a single address, or in the agent.
func TestDoctorFindsNodesThatFailElsewhere(t *testing.T) {
	s := newStage(t)
	device := strings.Fields(s.node.MustRun(t, "ip", "-o", "route", "get", s.here.V4.String()))
	link := device[slices.Index(device, "dev")+1]
	neighbor := "ip neigh replace " + s.here.V4.String() + " dev " + link + " nud "
	for _, c := range []struct{ name, spoil, mend, want string }{
		{"a wrong neighbor", neighbor + "permanent lladdr 02:00:00:00:00:99", "ip neigh del " + s.here.V4.String() + " dev " + link, "endpoints on this node"},
		{
			"a local route", "ip route del local " + plainIP + " dev kube-ipvs0 table local",
			"ip route add local " + plainIP + " dev kube-ipvs0 table local proto kernel scope host src " + plainIP, "local routes",
		},
		{
			"a loopback that refuses", "iptables -I OUTPUT -o lo -p tcp --dport 10249:10256 -j REJECT", "iptables -D OUTPUT -o lo -p tcp --dport 10249:10256 -j REJECT",
			"loopback",
		},
		{
			"IPVS that ignores packets", "ipvsadm --start-daemon backup --mcast-interface eth0; sysctl -qw net.ipv4.vs.backup_only=1",
			"sysctl -qw net.ipv4.vs.backup_only=0; ipvsadm --stop-daemon backup", "IPVS backup",
		},
		{"IPv6 disabled on lo", "sysctl -qw net.ipv6.conf.lo.disable_ipv6=1", "sysctl -qw net.ipv6.conf.lo.disable_ipv6=0", "IPv6 on interfaces"},
		{"an agent that hangs", fmt.Sprint("kill -STOP ", s.agent.PID), fmt.Sprint("kill -CONT ", s.agent.PID), "agent"},
	} {
		found := func() bool {
			return slices.ContainsFunc(warnings(runJSON[doctor.Report](t, s, "doctor")), func(f finding.Finding) bool { return f.Subject == c.want })
		}
		if found() {
			t.Fatalf("doctor finds %q on a healthy node", c.want)
		}
		s.node.MustRun(t, "sh", "-ec", c.spoil)
		if !found() {
			t.Errorf("doctor does not detect %s", c.name)
		}
		s.node.MustRun(t, "sh", "-ec", c.mend)
	}
}

// TestDoctorNoticesNamespaces: doctor in another network namespace than the agent reports only that.
func TestDoctorNoticesNamespaces(t *testing.T) {
	s := newStage(t)
	out, err := s.node.Run("unshare", "-n", s.binary, "doctor", "--status-socket", s.socket)
	if strings.Count(out, "remedy:") != 1 || !strings.Contains(out, "broken   network namespace") {
		t.Errorf("%v\n%s", err, out)
	}
}

// warnings returns the findings that are worse than a notice.
func warnings(r doctor.Report) []finding.Finding {
	return slices.DeleteFunc(slices.Clone(r.Findings), func(f finding.Finding) bool { return f.Severity == finding.Notice })
}

// pathsFound also checks that doctor followed and probed some paths.
func pathsFound(t *testing.T, s *stage) []finding.Finding {
	t.Helper()
	report := runJSON[doctor.Report](t, s, "doctor")
	if report.Paths < 8 || report.Connected < 2 {
		t.Errorf("doctor followed only %d paths and made only %d connections", report.Paths, report.Connected)
	}
	return slices.DeleteFunc(report.Findings, func(f finding.Finding) bool { return f.Subject != "path" })
}
