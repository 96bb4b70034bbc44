package realcluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/realcluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestUpgradeAndRollback(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	l := s.startLoad()
	before := s.agents()
	s.asPrinted("docs/compatibility.md", "helm upgrade", "reuse-values", "reuse-values --set 'extraArgs={--log-format=json}'") // a change, as in a new version
	log := s.kubectl("-n", "kube-system", "logs", s.agents()[s.Nodes[0].Name])
	if !strings.HasPrefix(log, "{") {
		t.Errorf("the log of the upgraded agent is not JSON:\n%s", log)
	}
	s.helm("rollback", "kube-ipvs", "--namespace", "kube-system")
	s.agentsReady()
	after := s.agents()
	for node, pod := range before {
		if after[node] == pod || after[node] == "" {
			t.Errorf("%s has the pod %q; before the upgrade it was %q", node, after[node], pod)
		}
	}
	l.nothingLost(t)
}

// After the chart is removed, the kernel continues to serve until cleanup.
func TestUninstall(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	l := s.startLoad()
	s.asPrinted("docs/install.md", "helm uninstall")
	s.eventually("the agent's pods are gone", func() error {
		if left := s.agents(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	l.nothingLost(t)
	for _, n := range s.Nodes {
		s.cleanup(n)
	}
	s.helm(realcluster.InstallArgs()...)
	s.agentsReady()
	if out := s.inClient("curl -sS -m 30 http://web/hostname"); !strings.HasPrefix(out, "web-") {
		t.Errorf("after reinstallation, the Service answers %q", out)
	}
}

func (s stage) cleanup(n *realcluster.Node) {
	s.t.Helper()
	if out := s.rules(n); !strings.Contains(out, "10.96.0.10:53") {
		s.t.Errorf("before cleanup, %s has no rules for the Service:\n%s", n.Name, out)
	}
	if out := s.asPrinted("docs/install.md", "kubectl debug", "NODE", n.Name); !strings.Contains(out, "kube-ipvs0") {
		s.t.Errorf("the commands show nothing of the cleanup:\n%s", out)
	}
	if out := s.rules(n); out != "" {
		s.t.Errorf("after cleanup, %s has rules:\n%s", n.Name, out)
	}
}

func (s stage) rules(n *realcluster.Node) string {
	s.t.Helper()
	out, err := n.Command("sh", "-c", "ipvsadm -Sn; ip -o link show kube-ipvs0 2>/dev/null; ipset list -n | grep ^KIPVS; iptables-save | grep -i kube-ipvs; true").CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
