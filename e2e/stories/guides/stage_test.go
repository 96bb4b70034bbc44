package guides

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// patience bounds every wait. Only a failing test waits that long.
const patience = 2 * time.Minute

// The agent runs on node-1, and node-2 has no agent. The pages show the Services in testdata/services.yaml.
type stage struct {
	*cluster.Cluster
	api   *controlplane.ControlPlane
	nodes map[string]*node
}

// node is a cluster node with its own /run, because two agents cannot share one socket.
type node struct {
	*cluster.Node
	run  *cluster.Process // keeps the node's mount namespace alive
	path string           // the first directory in its PATH
}

func newStage(t *testing.T) *stage {
	t.Helper()
	labtest.Need(t)
	s := &stage{nodes: map[string]*node{}}
	s.Cluster = cluster.New(t, cluster.Config{Name: "guides", Nodes: 2, Clients: -1, Families: cluster.IPv4Only})
	s.api = controlplane.Start(t, controlplane.Config{
		NetNS: s.Router.Namespace(), BindAddress: netip.MustParseAddr("192.168.50.1"), ReadyTimeout: 5 * time.Minute,
	})
	programs := installPrograms(t)
	for _, n := range s.Nodes {
		s.nodes[n.Name] = newNode(t, n, programs)
	}
	for _, host := range []*cluster.Host{s.Nodes[0].Pod(t, "cart-1").Host, s.Nodes[1].Pod(t, "cart-2").Host, s.Nodes[1].Host} {
		serveHTTP(t, host, 8080)
	}
	s.apply(t, "testdata/services.yaml")
	s.startAgent(t)
	return s
}

func newNode(t *testing.T, n *cluster.Node, programs string) *node {
	t.Helper()
	run := n.MustStart(t, "unshare", "--mount", "sh", "-ec", "mount -t tmpfs none /run; echo mounted; exec sleep infinity")
	run.AwaitLog(t, patience, "mounted")
	return &node{Node: n, path: programs, run: run}
}

func (s *stage) apply(t *testing.T, file string) {
	t.Helper()
	manifests, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.api.Apply(t.Context(), string(manifests)); err != nil {
		t.Fatal(err)
	}
}

// The agent runs with kube-proxy's permissions.
func (s *stage) startAgent(t *testing.T) {
	t.Helper()
	kubeconfig, err := s.api.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := s.nodes["node-1"].start("kube-ipvs run --hostname-override node-1 --cluster-cidr 10.244.0.0/16 --kubeconfig "+kubeconfig, "/")
	if err != nil {
		t.Fatal(err)
	}
	agent.AwaitLog(t, patience, "initial sync complete")
}

// installPrograms creates a directory with the program under test. The wrapper disables the conntrack limit, which
// can be set only in the initial network namespace.
func installPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	wrapper := fmt.Sprintf(`#!/bin/sh
case $1 in
run|plan|cleanup|preflight) verb=$1; shift; exec %[1]s "$verb" --conntrack-max-per-core 0 "$@" ;;
*) exec %[1]s "$@" ;;
esac
`, cluster.AgentBinary(t))
	if err := os.WriteFile(filepath.Join(dir, "kube-ipvs"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (n *node) command(line, dir string) cluster.Command {
	return cluster.Command{
		Args:   []string{"nsenter", "--mount", "--target", fmt.Sprint(n.run.PID), "--wd=" + dir, "sh", "-c", "exec 2>&1; " + line},
		Env:    append(os.Environ(), "PATH="+n.path+":"+os.Getenv("PATH")),
		Within: patience,
	}
}

func (n *node) start(line, dir string) (*cluster.Process, error) {
	return n.StartCommand(n.command("exec "+line, dir))
}

func serveHTTP(t *testing.T, h *cluster.Host, port uint16) {
	t.Helper()
	var listener net.Listener
	err := h.Do(func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), port).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "I am %s\n", h.Name) })}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// get replaces curl, which is missing on some machines.
func get(h *cluster.Host, url string) (string, error) {
	page, err := h.HTTPGet(url)
	return page.Body, err
}

func statusOf(err error) int {
	var exit interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

func lastLines(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
