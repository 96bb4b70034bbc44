package inspect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
)

// firewallRules is a directory of rules recorded from the Debian packages of ufw, firewalld and docker.
const firewallRules = "../../../internal/explain/testdata/firewalls"

// Packets must stop or arrive as explain predicts. At most one path in ten may be unclear.
func TestExplainPredictsPacketsBehindFirewalls(t *testing.T) {
	s := newStage(t)
	for _, program := range []string{"ufw", "firewalld", "firewalld-iptables", "docker"} {
		t.Run(program, func(t *testing.T) {
			s.firewall(t, program)
			paths, unclear := 0, 0
			for _, service := range []string{"plain", "empty", "local", "ranged", "far", "plain6", "local6", "far6"} {
				for _, from := range []*cluster.Host{s.client.Host, s.outside, s.node.Host} {
					at := clientAddr(from, service)
					for _, e := range runJSON[explanations](t, s, "explain", "default/"+service, "--from", at.String()).Items {
						paths++
						if e.Verdict == explain.Unclear {
							unclear++
							continue
						}
						got := from.Probe(cluster.TCP, e.Address.String(), cluster.FromAddr(at), cluster.Within(2*time.Second))
						if answered := got.Outcome == cluster.Answered; answered != (e.Verdict == explain.Passes) {
							t.Errorf("%s to %s: explain predicts %s because of %v, but the request was %s", from.Name, e.Address, e.Verdict, e.Reasons, got)
						}
					}
				}
			}
			if unclear*10 > paths {
				t.Errorf("%d of %d paths are unclear", unclear, paths)
			}
		})
	}
}

func (s *stage) firewall(t *testing.T, program string) {
	t.Helper()
	for _, c := range []struct{ ending, save, restore string }{
		{"iptables", "iptables-nft-save", "iptables-nft-restore --noflush"}, {"ip6tables", "ip6tables-nft-save", "ip6tables-nft-restore --noflush"},
		{"nft", "", "nft -f -"},
	} {
		rules, err := os.ReadFile(filepath.Join(firewallRules, program+"."+c.ending))
		if err != nil {
			continue // the program has no rules of this kind
		}
		file := filepath.Join(t.TempDir(), "rules")
		if err := os.WriteFile(file, rules, 0o600); err != nil {
			t.Fatal(err)
		}
		if c.save == "" {
			t.Cleanup(func() { s.node.MustRun(t, "nft", "delete", "table", "inet", "firewalld") })
		} else {
			saved := s.node.MustRun(t, c.save)
			back := filepath.Join(t.TempDir(), "saved")
			if err := os.WriteFile(back, []byte(saved), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.node.MustRun(t, "sh", "-c", strings.TrimSuffix(c.restore, " --noflush")+" < "+back) })
		}
		s.node.MustRun(t, "sh", "-c", c.restore+" < "+file)
	}
}
