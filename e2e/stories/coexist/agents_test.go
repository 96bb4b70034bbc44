package coexist

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// The second agent waits, and takes over when the first agent exits.
func TestTwoAgents(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	first := w.agents[w.node1]
	before := dump(t, w.node1, showAll)
	const health = "127.0.0.1:10356"
	w.startAgent(t, w.node1, "--ipvs-scheduler", "wlc", "--healthz-bind-address", health)
	second := w.agents[w.node1]
	t.Cleanup(func() {
		w.stopAgent(t, w.node1)
		w.startAgent(t, w.node1)
		w.agents[w.node1].AwaitLog(t, patience, "initial sync complete")
	})
	second.AwaitLog(t, patience, "waiting for the node lock")
	second.AwaitLog(t, patience, "another kube-ipvs is running on this node")
	second.AwaitLog(t, patience, "serving health")
	page, err := w.node1.HTTPGet("http://" + health + "/readyz")
	if err != nil || page.Status != 503 || !strings.Contains(page.Body, "waiting for the node lock: another kube-ipvs is running on this node (kube-ipvs run, process ") {
		t.Errorf("/readyz of the second agent answered %d %q (%v), want the reason for waiting", page.Status, page.Body, err)
	}
	if page, err = w.node1.HTTPGet("http://" + health + "/livez"); err != nil || page.Status != 200 {
		t.Errorf("/livez of the second agent answered %d %q (%v)", page.Status, page.Body, err)
	}
	flows := w.client.OpenFlows(t, 4, cluster.TCP, w.farService().at(cluster.V4, http), cluster.FlowConfig{Within: patience})
	together := time.Duration(cluster.Size(1, 60)) * time.Second
	time.Sleep(together)
	compareDumps(t, "while the second agent waits", before, dump(t, w.node1, showAll))
	if err := first.Stop(patience); err != nil {
		t.Errorf("stop the first agent: %v", err)
	}
	second.AwaitLog(t, patience, "initial sync complete")
	flows.AwaitRound(t, patience)
	t.Attr("figure", fmt.Sprintf("%v together, then one alone: %s", together, flows.MustBeUnharmed(t).Summary()))
	w.mustPass(t, cluster.V4)
}

// TestNodeLockBelongsToRoot binds the node lock's socket as an unprivileged user. The agent starts anyway.
func TestNodeLockBelongsToRoot(t *testing.T) {
	w := onWorld(t)
	node := w.node3
	t.Cleanup(func() { w.wipe(t, node) })
	const user = 1000
	socket := listenAs(t, node, user, "@kube-ipvs/agent")
	t.Cleanup(func() { _ = socket.Close() })
	w.startAgent(t, node)
	agent := w.agents[node]
	agent.AwaitLog(t, patience, "initial sync complete")
	if !strings.Contains(agent.Log(), fmt.Sprintf("user %d", user)) || strings.Contains(agent.Log(), "waiting for the node lock") {
		t.Errorf("the agent waited, or its log does not name user %d:\n%s", user, agent.Log())
	}
}

func listenAs(t *testing.T, at *cluster.Node, user int, name string) (listener net.Listener) {
	t.Helper()
	become := func(user int) error { // affects only this thread
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(user), ^uintptr(0)); errno != 0 {
			return errno
		}
		return nil
	}
	err := at.Do(func() (err error) {
		if err := become(user); err != nil {
			return err
		}
		listener, err = net.Listen("unix", name)
		if back := become(0); back != nil {
			panic(back)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return listener
}
