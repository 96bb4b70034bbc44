package realcluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestAgentKilled(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	l := s.startLoad()
	node := s.Nodes[0]
	pod := s.agents()[node.Name]
	if out, err := node.Command("pkill", "-KILL", "-x", "kube-ipvs").CombinedOutput(); err != nil {
		t.Fatalf("kill the agent: %v\n%s", err, out)
	}
	s.eventually("the kubelet has started the container again", func() error {
		out := s.kubectl("-n", "kube-system", "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
		if out != "1 true" {
			return fmt.Errorf("restarts and readiness are %s", out)
		}
		return nil
	})
	s.kubectl("-n", "kube-system", "delete", "pods", "-l", "app.kubernetes.io/name=kube-ipvs")
	s.agentsReady()
	l.nothingLost(t)
}

func TestKubeletAndContainerdRestart(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	l := s.startLoad()
	before := s.runningContainers()
	for _, n := range s.Nodes {
		for _, step := range []func() error{n.KillKubelet, n.KillContainerd, n.StartContainerd, n.StartKubelet} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A restarted kubelet reports the state of existing pods, or restarts missing containers, before it runs a new pod.
	s.kubectl("run", "after-restart", "--image=registry.k8s.io/e2e-test-images/agnhost:2.63.0", "--image-pull-policy=Never", "--restart=Never", "--", "pause")
	s.kubectl("wait", "--for=condition=Ready", "pod/after-restart", "--timeout=10m")
	s.kubectl("delete", "pod", "after-restart", "--grace-period=0", "--force")
	s.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=10m")
	s.agentsReady()
	l.nothingLost(t)
	if after := s.runningContainers(); after != before {
		t.Errorf("containers changed; before:\n%s\nafter:\n%s", before, after)
	}
}

// These containers must survive.
func (s stage) runningContainers() string {
	s.t.Helper()
	const ids = `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID}{"\n"}{end}`
	return strings.Join([]string{
		s.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=kube-ipvs", "-o", ids),
		s.kubectl("get", "pods", "-l", "app=web", "-o", ids),
	}, "")
}
