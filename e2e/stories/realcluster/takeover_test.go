package realcluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/realcluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestTakeOver switches from kube-proxy in ipvs mode to the agent and back, with the commands in
// docs/replace-kube-proxy.md.
func TestTakeOver(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	s.helm("uninstall", "kube-ipvs", "--namespace", "kube-system")
	s.eventually("the agent's pods are gone", func() error {
		if left := s.agents(); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	for _, n := range s.Nodes {
		s.cleanup(n)
	}
	s.installKubeProxy()
	l := s.startLoad()

	const page = "docs/replace-kube-proxy.md"
	if out := s.asPrinted(page, "kubectl -n kube-system get configmap kube-proxy"); !strings.Contains(out, "ipvs") {
		t.Errorf("kube-proxy's mode is %q", out)
	}
	if out := s.asPrinted(page, "kubectl ipvs preflight"); !strings.Contains(out, "\ngo") {
		t.Errorf("preflight on all nodes:\n%s", out)
	}
	for _, n := range s.Nodes {
		// The nodes share the kernel's limit on connections, and preflight does not know the agent's configuration.
		if out := s.asPrinted(page, "kubectl debug", "NODE", n.Name); !strings.Contains(out, "nf_conntrack_max") {
			t.Errorf("preflight on %s:\n%s", n.Name, out)
		}
	}
	s.asPrinted(page, "kubectl -n kube-system patch")
	s.asPrinted(page, "helm install")
	for _, n := range s.Nodes {
		s.asPrinted(page, "kubectl label node NODE kube-ipvs.io/agent=true", "NODE", n.Name)
		s.runsOnly(n, "kube-ipvs")
		if out := s.asPrinted(page, "kubectl -n kube-system get pods", "POD", s.agents()[n.Name]); regexp.MustCompile(`(?m)^!`).MatchString(out) {
			t.Errorf("kube-ipvs status on %s reports a problem:\n%s", n.Name, out)
		}
	}
	for _, n := range s.Nodes {
		s.asPrinted(page, "kubectl label node NODE kube-ipvs.io/agent-", "NODE", n.Name)
		s.runsOnly(n, "kube-proxy")
	}
	l.nothingLost(t)
}

func (s stage) installKubeProxy() {
	s.t.Helper()
	config, err := os.ReadFile(filepath.Join(s.Checkout, "internal/config/testdata/kubeadm-ipvs.yaml"))
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.NewReplacer("maxPerCore: null", "maxPerCore: 0", "min: null", "min: 0").Replace(string(config))
	text = regexp.MustCompile(`server: https://\S+`).ReplaceAllString(text, "server: https://"+realcluster.Gateway+":6443")
	file := filepath.Join(s.t.TempDir(), "kube-proxy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.kubectl("apply", "-f", file, "-f", "e2e/stories/realcluster/testdata/kube-proxy.yaml")
	s.kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=10m")
	s.eventually("kube-proxy serves", func() error {
		_, err := s.Kubectl("exec", "client", "--", "curl", "-sS", "-m", "10", "http://web/hostname")
		return err
	})
}

func (s stage) runsOnly(n *realcluster.Node, proxy string) {
	s.t.Helper()
	s.eventually(proxy+" alone runs on "+n.Name, func() error {
		out := s.kubectl("-n", "kube-system", "get", "pods", "--field-selector=spec.nodeName="+n.Name, "--no-headers",
			"-o", "custom-columns=:metadata.name,:status.containerStatuses[0].ready")
		ready := 0
		for line := range strings.Lines(out) {
			name, state, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch {
			case strings.HasPrefix(name, proxy+"-") && strings.TrimSpace(state) == "true":
				ready++
			case strings.HasPrefix(name, "kube-proxy-"), strings.HasPrefix(name, "kube-ipvs-"):
				return fmt.Errorf("%s", out)
			}
		}
		if ready != 1 {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}
