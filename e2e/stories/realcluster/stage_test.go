package realcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/realcluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// patience limits every wait. A passing test waits much less.
const patience = 10 * time.Minute

// All tests share one cluster.
var started struct {
	once    sync.Once
	cluster *realcluster.Cluster
	err     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if started.cluster != nil {
		if err := started.cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

type stage struct {
	*realcluster.Cluster
	t *testing.T
}

// enter returns the cluster. The first call starts it.
func enter(t *testing.T) stage {
	t.Helper()
	if os.Getenv("LAB_MODE") == "native" {
		t.Fatal("a cluster needs a lab guest; use make cluster-test")
	}
	started.once.Do(func() {
		var checkout string
		if checkout, started.err = upstream.Root(); started.err != nil {
			return
		}
		started.cluster, started.err = realcluster.Up(context.Background(), realcluster.Config{Checkout: checkout, Nodes: 2, Out: os.Getenv("LAB_OUT"), Logf: t.Logf})
		if started.err != nil {
			return
		}
		_, err := started.cluster.Kubectl("apply", "-f", "e2e/stories/realcluster/testdata/web.yaml")
		_, waited := started.cluster.Kubectl("rollout", "status", "deployment/web", "--timeout=10m")
		_, client := started.cluster.Kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=10m")
		started.err = errors.Join(err, waited, client)
	})
	if started.err != nil {
		t.Fatal(started.err)
	}
	return stage{started.cluster, t}
}

func (s stage) kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.Kubectl(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// helm runs helm in the root of the checkout.
func (s stage) helm(args ...string) string {
	s.t.Helper()
	out, err := s.Run("helm", args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s stage) inClient(command string) string {
	s.t.Helper()
	return s.kubectl("exec", "client", "--", "sh", "-c", command)
}

func (s stage) eventually(what string, f func() error) {
	s.t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Second) {
		if err = f(); err == nil {
			return
		}
	}
	s.t.Fatalf("%s: not within %s: %v", what, patience, err)
}

func (s stage) agents() map[string]string {
	s.t.Helper()
	pods := map[string]string{}
	out := s.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=kube-ipvs", "--no-headers", "-o", "custom-columns=:spec.nodeName,:metadata.name")
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 2 {
			pods[fields[0]] = fields[1]
		}
	}
	return pods
}

func (s stage) agentsReady() {
	s.t.Helper()
	s.kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-ipvs", "--timeout=10m")
}
