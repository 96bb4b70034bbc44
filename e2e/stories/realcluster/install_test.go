package realcluster

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/realcluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestInstall(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	out := s.kubectl("-n", "kube-system", "exec", "daemonset/kube-ipvs", "--", "kube-ipvs", "services")
	for _, want := range []string{
		`default +kubernetes +https +ClusterIP +10\.96\.0\.1:443/tcp .* 1/1 .* Served`,
		`kube-system +kube-dns +dns +ClusterIP +10\.96\.0\.10:53/udp .* Served`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the output of kube-ipvs services has no line %q:\n%s", want, out)
		}
	}
	for node, pod := range s.agents() {
		if out := s.kubectl("-n", "kube-system", "exec", pod, "--", "kube-ipvs", "status"); regexp.MustCompile(`(?m)^!`).MatchString(out) {
			t.Errorf("kube-ipvs status on %s reports a problem:\n%s", node, out)
		}
		log := s.kubectl("-n", "kube-system", "logs", pod)
		for _, word := range []string{"permitted", "denied", "read-only"} { // the chart grants all privileges that the agent needs
			if strings.Contains(log, word) {
				t.Errorf("the log of the agent on %s contains %q:\n%s", node, word, log)
			}
		}
		if !strings.Contains(log, "initial sync complete") {
			t.Errorf("the log of the agent on %s does not report the initial sync:\n%s", node, log)
		}
	}
	if out := s.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=kube-ipvs", "--no-headers",
		"-o", "custom-columns=:status.containerStatuses[0].ready,:status.containerStatuses[0].restartCount"); strings.TrimSpace(out) != "true   0\ntrue   0" {
		t.Errorf("the agent's containers are not ready or have restarted (ready, restarts):\n%s", out)
	}
	s.asPrinted("docs/install.md", "helm test")
}

// TestDNS queries the cluster's DNS through its Service.
func TestDNS(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	const name = "kubernetes.default.svc.cluster.local"
	for _, transport := range []string{"+notcp", "+tcp"} {
		if out := s.inClient("dig +short " + transport + " " + name); strings.TrimSpace(out) != "10.96.0.1" {
			t.Errorf("dig %s: %q", transport, out)
		}
	}
	if out := s.inClient("grep nameserver /etc/resolv.conf; curl -sS -m 30 http://web.default.svc/hostname"); !strings.HasPrefix(out, "nameserver "+realcluster.DNSAddress+"\nweb-") {
		t.Errorf("the output does not show the pod's name server and an answer from the Service:\n%s", out)
	}
	pods := s.kubectl("get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.status.podIP}{"\n"}{end}`)
	headless := s.inClient("dig +short web-pods.default.svc.cluster.local")
	if got, want := slices.Sorted(strings.Lines(headless)), slices.Sorted(strings.Lines(pods)); !slices.Equal(got, want) {
		t.Errorf("the headless Service has the addresses %q, want those of its pods, %q", got, want)
	}
	if out := s.inClient("curl -sS -m 30 http://web-pods:8080/hostname"); !strings.HasPrefix(out, "web-") {
		t.Errorf("the headless Service answers %q", out)
	}
}

func TestRollingUpdate(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	l := s.startLoad()
	s.kubectl("set", "env", "deployment/web", "GENERATION=2")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
	s.eventually("the old pods are gone", func() error {
		out := s.kubectl("get", "pods", "-l", "app=web", "--no-headers")
		if n := strings.Count(out, "\n"); n != 3 {
			return fmt.Errorf("%d pods:\n%s", n, out)
		}
		return nil
	})
	l.nothingLost(t)
}
