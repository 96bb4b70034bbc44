package realcluster

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestNodeJoinsAndLeaves(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	l := s.startLoad()
	begin := time.Now()
	n, err := s.AddNode()
	if err != nil {
		t.Fatal(err)
	}
	web := "http://" + n.IPv4 + ":30080/hostname"
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	s.eventually(n.Name+" serves the Web", func() error { return get(client, web) })
	t.Logf("%s served the node port %s after it started", n.Name, time.Since(begin).Round(time.Second))
	s.agentsReady()
	s.kubectl("scale", "deployment/web", "--replicas=4") // the scheduler prefers the empty node
	s.kubectl("rollout", "status", "deployment/web", "--timeout=10m")
	s.kubectl("drain", n.Name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=10m")
	if err := get(client, web); err != nil {
		t.Errorf("a drained node does not serve the node port: %v", err)
	}
	if err := s.RemoveNode(n); err != nil {
		t.Fatal(err)
	}
	s.kubectl("delete", "node", n.Name)
	s.kubectl("scale", "deployment/web", "--replicas=3")
	s.eventually("the agent's pod on "+n.Name+" is deleted", func() error {
		if pod := s.agents()[n.Name]; pod != "" {
			return errors.New(pod)
		}
		return nil
	})
	l.nothingLost(t)
}
