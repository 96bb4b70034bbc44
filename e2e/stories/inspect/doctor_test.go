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

// TestDoctorFollowsPaths blocks packets in ways that no specific check of doctor detects. doctor must name the rule
// that blocks them.
func TestDoctorFollowsPaths(t *testing.T) {
	s := newStage(t)
	if found := pathsFound(t, s); len(found) > 0 {
		t.Fatalf("doctor reports findings on a healthy node: %+v", found)
	}
	for name, c := range map[string]struct {
		spoil, mend string
		from        *cluster.Host
		severity    finding.Severity
		want        string
	}{
		"policy": {
			"iptables -A INPUT -i lo -j ACCEPT; iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT; " +
				"iptables -A INPUT -p tcp --dport 22 -j ACCEPT; iptables -P INPUT DROP",
			"iptables -P INPUT ACCEPT; iptables -D INPUT 2; iptables -D INPUT 2; iptables -D INPUT 2", s.client.Host, finding.Broken, "INPUT",
		},
		"rule behind ours": {
			"iptables -A INPUT -p tcp --dport 80 -j DROP", "iptables -D INPUT -p tcp --dport 80 -j DROP", s.client.Host, finding.Broken, "--dport 80 -j DROP",
		},
		"to the endpoints": {
			"iptables -A OUTPUT -p tcp --dport 8080 -j REJECT", "iptables -D OUTPUT -p tcp --dport 8080 -j REJECT", s.node.Host, finding.Broken,
			"--dport 8080 -j REJECT",
		},
		"iptables-legacy": {
			"iptables-legacy -A INPUT -p tcp --dport 80 -j DROP", "iptables-legacy -F; iptables-legacy -X", s.client.Host, finding.Broken, "iptables-legacy",
		},
		"before connection tracking": {
			"iptables -t raw -I PREROUTING -d 10.96.0.0/12 -j DROP", "iptables -t raw -D PREROUTING -d 10.96.0.0/12 -j DROP", s.client.Host, finding.Broken,
			"-d 10.96.0.0/12 -j DROP",
		},
		"addresses that are not local at the interface": {
			"nft add table inet guard; nft 'add chain inet guard pre { type filter hook prerouting priority 0; policy accept; }'; " +
				"nft add rule inet guard pre fib daddr . iif type != '{ local, broadcast, multicast }' drop",
			"nft delete table inet guard", s.client.Host, finding.Broken, "guard",
		},
		"a chain of nftables": {
			"nft add table inet guard; nft 'add chain inet guard in { type filter hook input priority filter + 10; policy accept; }'; " +
				"nft add rule inet guard in ct state established,related accept; nft add rule inet guard in iifname lo accept; " +
				"nft add rule inet guard in tcp dport 22 accept; nft add rule inet guard in reject with icmpx admin-prohibited",
			"nft delete table inet guard", s.client.Host, finding.Warning, "guard",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.node.MustRun(t, "sh", "-ec", c.spoil)
			if got := c.from.Probe(cluster.TCP, plainIP+":80", cluster.Within(2*time.Second)); got.Outcome == cluster.Answered {
				t.Errorf("the client got %s", got)
			}
			found := pathsFound(t, s)
			if !slices.ContainsFunc(found, func(f finding.Finding) bool {
				return (f.Severity == c.severity || f.Severity == finding.Broken) && strings.Contains(f.Problem, c.want)
			}) {
				t.Errorf("found %+v, want a finding that names %q", found, c.want)
			}
			s.node.MustRun(t, "sh", "-ec", c.mend)
			if found := pathsFound(t, s); len(found) > 0 {
				t.Errorf("after mending: %+v", found)
			}
		})
	}
}

// pathsFound also checks that doctor followed and probed some paths.
func pathsFound(t *testing.T, s *stage) []finding.Finding {
	t.Helper()
	report := runJSON[doctor.Report](t, s, "doctor")
	if report.Paths < 8 || report.Connected < 2 {
		t.Errorf("followed %d paths, with %d connections", report.Paths, report.Connected)
	}
	return slices.DeleteFunc(report.Findings, func(f finding.Finding) bool { return f.Subject != "path" })
}
