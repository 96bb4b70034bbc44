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

// divide matches the patch in step 2 of docs/replace-kube-proxy.md.
var divide = regexp.MustCompile(`(?m)^kubectl -n kube-system patch daemonset kube-proxy --type merge -p '(.*)'$`)

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

	page, err := os.ReadFile(filepath.Join(s.Checkout, "docs", "replace-kube-proxy.md"))
	if err != nil {
		t.Fatal(err)
	}
	patch := divide.FindSubmatch(page)
	if patch == nil {
		t.Fatal("docs/replace-kube-proxy.md has no patch for kube-proxy's DaemonSet")
	}
	s.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type", "merge", "-p", string(patch[1]))
	s.kubectl("-n", "kube-system", "rollout", "status", "daemonset", "kube-proxy", "--timeout=10m")
	s.helm("install", "kube-ipvs", "./charts/kube-ipvs", "--namespace", "kube-system",
		"-f", "./charts/kube-ipvs/presets/kubeadm.yaml", "-f", "./charts/kube-ipvs/presets/take-over.yaml")
	for _, n := range s.Nodes {
		s.kubectl("label", "node", n.Name, "kube-ipvs.io/agent=true")
		s.runsOnly(n, "kube-ipvs")
		pod := s.agents()[n.Name]
		if out := s.kubectl("-n", "kube-system", "exec", pod, "--", "kube-ipvs", "status"); regexp.MustCompile(`(?m)^!`).MatchString(out) {
			t.Errorf("kube-ipvs status on %s reports a problem:\n%s", n.Name, out)
		}
	}
	for _, n := range s.Nodes {
		s.kubectl("label", "node", n.Name, "kube-ipvs.io/agent-")
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
