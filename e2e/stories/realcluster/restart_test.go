package realcluster

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// TestAgentKilled kills the agent's process and then deletes its pods.
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
