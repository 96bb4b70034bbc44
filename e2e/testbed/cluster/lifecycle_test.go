package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestProcesses(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	node := c.Nodes[0]
	if out := node.MustRun(t, "ip", "-o", "-4", "addr", "show", "eth0"); !strings.Contains(out, "192.168.50.11/24") {
		t.Errorf("eth0: %s", out)
	}
	if out := node.MustRun(t, "cat", "/proc/sys/net/ipv4/ip_forward"); out != "1\n" {
		t.Errorf("ip_forward: %q", out)
	}
	if v, err := c.Clients[0].Sysctl("net.ipv4.ip_forward"); v != "0" || err != nil {
		t.Errorf("the client's ip_forward is %q, %v", v, err)
	}
	_, err := node.Run("sh", "-c", "echo out; echo err >&2; exit 3")
	for _, want := range []string{"node-1", "sh -c", "out", "err", "exit status 3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if _, err := node.Run("no-such-program"); err == nil {
		t.Error("starting no-such-program succeeded")
	}
	if _, err := node.RunCommand(Command{Args: []string{"sleep", "60"}, Within: 50 * time.Millisecond}); err == nil {
		t.Error("sleep 60 did not end")
	}
}

func TestStoppingProcesses(t *testing.T) {
	labtest.NeedRoot(t)
	node := New(t, Config{Nodes: 1}).Nodes[0]
	obedient := node.MustStart(t, "sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
	obedient.AwaitLog(t, 5*time.Second, "ready")
	if err := obedient.Stop(5 * time.Second); err != nil || !strings.Contains(obedient.Log(), "bye") {
		t.Errorf("stopping the obedient process: %v, log %q", err, obedient.Log())
	}
	stubborn := node.MustStart(t, "sh", "-c", "trap '' TERM; echo ready; sleep 60 & wait; sleep 60")
	stubborn.AwaitLog(t, 5*time.Second, "ready")
	if err := stubborn.Stop(50 * time.Millisecond); err == nil || stubborn.Running() {
		t.Errorf("stopping the stubborn process: %v", err)
	}
	other, err := node.StartCommand(Command{Args: []string{"sh", "-c", "id -u; exit 5"},
		SysProcAttr: func(a *syscall.SysProcAttr) { a.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} }})
	if err != nil {
		t.Fatal(err)
	}
	if err, ended := other.Wait(5 * time.Second); !ended || err == nil || other.Log() != "65534\n" {
		t.Errorf("starting a process as another user: %v, log %q", err, other.Log())
	}
}

func TestPodsComeAndGo(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	node := c.Nodes[0]
	long := node.Pod(t, "a-pod-with-quite-a-long-name-1")
	longer := node.Pod(t, "a-pod-with-quite-a-long-name-2")
	if long.Veth == longer.Veth || len(long.Veth) > 15 {
		t.Errorf("the interfaces are called %q and %q, want different names of at most 15 characters", long.Veth, longer.Veth)
	}
	if _, err := node.AddPod(long.Name); err == nil {
		t.Error("the node accepts two pods with the same name")
	}
	long.Serve(t, TCP, 80)
	conn := node.Open(t, TCP, long.At(V4, 80))
	process, err := long.Start("sleep", "60")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := long.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	conn.MustBeDead(t)
	if process.Running() {
		t.Error("the deleted pod's process is still running")
	}
	if out := node.MustRun(t, "ip", "link"); strings.Contains(out, long.Veth) {
		t.Errorf("the deleted pod's interface still exists: %s", out)
	}
	if _, err := long.Listen(TCP, 81); err == nil {
		t.Error("a deleted pod still accepts connections")
	}
	again := node.Pod(t, long.Name)
	if again.V4 == long.V4 {
		t.Error("the deleted pod's address was reused")
	}
	again.Serve(t, TCP, 80)
	node.Get(t, TCP, again.At(V6, 80))
}

func TestCloseLeavesNothing(t *testing.T) {
	labtest.NeedRoot(t)
	existing := goleak.IgnoreCurrent()
	c, err := Create(Config{Name: "leaves nothing", Nodes: 2, Clients: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	web := c.Nodes[0].Pod(t, "web")
	web.Serve(t, TCP, 80)
	web.Serve(t, UDP, 80)
	flows, err := c.Clients[1].StartFlows(50, TCP, web.At(V4, 80), FlowConfig{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := c.Clients[0].Dial(UDP, web.At(V6, 80))
	if err != nil {
		t.Fatal(err)
	}
	child := c.Nodes[0].MustStart(t, "sleep", "600")
	// This daemon has its own session, and its parent has exited.
	web.MustRun(t, "sh", "-c", "setsid sh -c 'sleep 600; true' >/dev/null 2>&1 &")
	inodes := namespaceInodes(t, c)
	if len(within(inodes)) < 2 {
		t.Errorf("only the processes %v are in the namespaces, want at least two", within(inodes))
	}

	witness := newWitness(t, c)
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if child.Running() || conn.Alive() {
		t.Error("a process or connection outlived the cluster")
	}
	if r := flows.Stop(); r.Sent == 0 {
		t.Errorf("flows: %s", r)
	}
	if left := within(inodes); len(left) > 0 {
		t.Errorf("Close left the processes %v", left)
	}
	Eventually(t, 20*time.Second, "the kernel destroys the namespaces", func() error {
		links, err := witness.nl.LinkList()
		if err == nil && len(links) > 1 {
			err = fmt.Errorf("%d interfaces still exist", len(links)-1)
		}
		return err
	})
	if err := witness.remove(); err != nil {
		t.Error(err)
	}
	checkClosed(t, c)
	goleak.VerifyNone(t, existing)
}

func namespaceInodes(t *testing.T, c *Cluster) map[uint64]bool {
	t.Helper()
	inodes := map[uint64]bool{}
	for _, h := range c.hosts {
		ino, err := h.ns.inode()
		if err != nil {
			t.Fatal(err)
		}
		inodes[ino] = true
	}
	return inodes
}

// newWitness returns a namespace with an interface to each of the cluster's hosts. Each interface disappears
// only when the kernel destroys the host's namespace.
func newWitness(t *testing.T, c *Cluster) *namespace {
	t.Helper()
	witness, err := newNamespace(c.Prefix + "-witness")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = witness.remove() })
	for i, h := range c.hosts {
		if _, _, err := veth(&Host{Name: "witness", ns: witness}, fmt.Sprint("to-", i), h, "witness"); err != nil {
			t.Fatal(err)
		}
	}
	return witness
}

func checkClosed(t *testing.T, c *Cluster) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(namesDir, c.Prefix+"*"))
	locks, _ := filepath.Glob(filepath.Join(locksDir, c.Prefix+"*"))
	if len(names)+len(locks) > 0 {
		t.Errorf("left: %v %v", names, locks)
	}
	if _, err := c.Nodes[0].AddPod("late"); err == nil {
		t.Error("a closed cluster accepts pods")
	}
	if _, err := c.Nodes[0].Run("true"); err == nil {
		t.Error("a closed cluster runs programs")
	}
}

// within lists the processes in these network namespaces, without entering the namespaces.
func within(inodes map[uint64]bool) (pids []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, l := range links {
		var ino uint64
		target, _ := os.Readlink(l)
		if _, err := fmt.Sscanf(target, "net:[%d]", &ino); err == nil && inodes[ino] {
			pids = append(pids, l)
		}
	}
	return pids
}

func TestMachineIsUntouched(t *testing.T) {
	labtest.NeedRoot(t)
	state := func() string {
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for _, l := range links {
			s = append(s, l.Attrs().Name)
		}
		forward, _ := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		redirects, _ := os.ReadFile("/proc/sys/net/ipv4/conf/all/send_redirects")
		ns, _ := os.Readlink("/proc/self/ns/net")
		return fmt.Sprint(s, string(forward), string(redirects), ns)
	}
	before := state()
	c := New(t, Config{})
	c.Nodes[0].Pod(t, "web").Serve(t, TCP, 80)
	if after := state(); after != before {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
}

func TestCreateFailsCleanly(t *testing.T) {
	labtest.NeedRoot(t)
	existing := goleak.IgnoreCurrent()
	for _, config := range []Config{{Nodes: 1000}, {Nodes: -1}, {RPFilter: 3}, {Families: 99}} {
		if _, err := Create(config); err == nil {
			t.Errorf("%+v: no error", config)
		}
	}
	// The router exists, but its second bridge cannot be created.
	good := outside
	outside = Prefixes{}
	defer func() { outside = good }()
	if _, err := Create(Config{Name: "broken"}); err == nil || !strings.Contains(err.Error(), "router") {
		t.Errorf("error: %v", err)
	}
	for _, dir := range []string{namesDir, locksDir} {
		if left, _ := filepath.Glob(filepath.Join(dir, "kipvs-broken*")); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	goleak.VerifyNone(t, existing)
}

func TestStaleNamespacesAreSwept(t *testing.T) {
	labtest.NeedRoot(t)
	if err := prepareNames(); err != nil {
		t.Fatal(err)
	}
	// A killed process leaves its names and an unlocked lock file behind.
	stale := uniquePrefix("stale")
	ns, err := newNamespace(stale + "-node-1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ns.remove() }()
	if err := os.MkdirAll(locksDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(locksDir, stale), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	living := New(t, Config{Nodes: 1})
	New(t, Config{Nodes: 1})
	if _, err := os.Stat(filepath.Join(namesDir, stale+"-node-1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale namespace still exists: %v", err)
	}
	if _, err := os.Stat(living.Nodes[0].NamespacePath()); err != nil {
		t.Errorf("the namespaces of a running cluster were removed: %v", err)
	}
}

func TestDump(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	web := c.Nodes[0].Pod(t, "web")
	web.Serve(t, TCP, 80)
	c.Clients[0].Get(t, TCP, web.At(V4, 80))
	p := c.Nodes[0].MustStart(t, "sh", "-c", "echo last words")
	if err, ended := p.Wait(5 * time.Second); err != nil || !ended {
		t.Fatalf("echo: %v, ended: %v", err, ended)
	}
	var out bytes.Buffer
	c.Dump(&out, true, 0)
	for _, want := range []string{"=== node-1", "--- ip addr", "192.168.50.11", "--- ip -6 route", "last words",
		"server web TCP 80: requests by source map[198.51.100.11:1]"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q", want)
		}
	}
	dir := t.TempDir()
	t.Setenv("LAB_OUT", dir)
	c.dumpFor(t)
	if files, _ := filepath.Glob(filepath.Join(dir, "TestDump", "*.txt")); len(files) != 4 {
		t.Errorf("files: %v", files)
	}
}

func BenchmarkCreate(b *testing.B) {
	labtest.NeedRoot(b)
	for b.Loop() {
		c, err := Create(Config{Nodes: 3})
		if err != nil {
			b.Fatal(err)
		}
		for i := range 6 {
			if _, err := c.Nodes[i%3].AddPod(fmt.Sprint("pod-", i)); err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
