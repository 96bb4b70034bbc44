package bench

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// flowsOpened events do not fit into the kernel's buffer for the flows command.
const flowsOpened = 40_000

// flows measures the cost of the flows command for connections from a pod to a ClusterIP.
func (b *bench) flows(t *testing.T, result *Result) {
	b.node.MustRun(t, "ipvsadm", "--set", "0", "0", "10") // shorter than the sleep below
	c := b.startFlows(t)
	f := Flows{Opened: flowsOpened}
	// A connection from the same port would be cheaper while IPVS remembers the earlier one.
	time.Sleep(15 * time.Second)

	before, used := c.printed(t, view.FlowNew), cluster.CPUTime(t, c.PID)
	f.Opening = b.open(t, flowsOpened)
	c.catchUp(t)
	f.Printed, f.Losses = c.printed(t, view.FlowNew)-before, c.printed(t, view.FlowsLost)
	f.Print = Cost(cluster.CPUTime(t, c.PID)-used) / Cost(f.Printed)

	b.flush(t)
	c.catchUp(t)
	before, losses := c.printed(t, view.FlowNew), c.printed(t, view.FlowsLost)
	c.signal(t, syscall.SIGSTOP)
	b.open(t, flowsOpened)
	c.signal(t, syscall.SIGCONT)
	c.catchUp(t)
	f.Buffered = c.printed(t, view.FlowNew) - before
	if c.printed(t, view.FlowsLost) == losses {
		t.Errorf("%d of %d connections were printed, but the command did not print %s", f.Buffered, flowsOpened, view.FlowsLost)
	}
	result.Flows = &f
}

// open opens connections with one packet each, and returns the cost of one. Half of them warm the caches.
func (b *bench) open(t *testing.T, n int) Cost {
	t.Helper()
	times, err := probe{Kind: "first", At: []netip.AddrPort{datagramSvc}, Limit: time.Minute, Count: n / 2}.on(b.client)
	if err != nil {
		t.Fatal(err)
	}
	return Cost(times[0]) / Cost(n/2)
}

// flush makes the kernel forget all tracked connections: a connection that it knows is not new.
func (b *bench) flush(t *testing.T) {
	t.Helper()
	if err := b.node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		t.Fatal(err)
	}
}

// flowsCommand is a running flows command that writes its lines to a file.
type flowsCommand struct {
	*cluster.Process
	lines string
}

func (b *bench) startFlows(t *testing.T) *flowsCommand {
	t.Helper()
	c := &flowsCommand{lines: filepath.Join(t.TempDir(), "flows")}
	c.Process = b.node.MustStart(t, "sh", "-c", fmt.Sprintf("exec %s flows -o json >%s", cluster.AgentBinary(t), c.lines))
	t.Cleanup(c.Kill)
	cluster.Eventually(t, time.Minute, "flows prints a connection", func() error {
		b.flush(t)
		b.open(t, 2)
		if c.printed(t, view.FlowNew) == 0 {
			return errors.New("it has not printed any")
		}
		return nil
	})
	b.flush(t)
	return c
}

func (c *flowsCommand) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// printed returns the number of lines with an event.
func (c *flowsCommand) printed(t *testing.T, event string) int {
	t.Helper()
	text, err := os.ReadFile(c.lines)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, fmt.Appendf(nil, `"event":%q`, event))
}

// catchUp waits until the command is idle.
func (c *flowsCommand) catchUp(t *testing.T) {
	t.Helper()
	for used, last := cluster.CPUTime(t, c.PID), time.Duration(-1); used != last; used, last = cluster.CPUTime(t, c.PID), used {
		time.Sleep(time.Second)
	}
}
