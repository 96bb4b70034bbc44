package netdev

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// setSysctl creates a sysctl in a tree that is a directory of files.
func setSysctl(t *testing.T, tree sysctlTree, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(tree.path(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tree.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLocalPortRange(t *testing.T) {
	tree := sysctlTree(t.TempDir())
	setSysctl(t, tree, localPortRange, "32768\t60999\n")
	if got, err := tree.localPortRange(); err != nil || !slices.Equal(got, kernel.DefaultLocalPorts) {
		t.Errorf("range: %v, %v", got, err)
	}
	for _, text := range []string{"", "1 2 3", "1 70000", "1,2"} {
		setSysctl(t, tree, localPortRange, text)
		if got, err := tree.localPortRange(); err == nil {
			t.Errorf("range %q: %v, want an error", text, got)
		}
	}
	if got, err := LocalPorts(); err != nil || len(got) == 0 {
		t.Errorf("this machine: %v, %v", got, err)
	}
}

func TestReservedPorts(t *testing.T) {
	tree := sysctlTree(t.TempDir())
	if got, err := tree.reservedPorts(); err != nil || got != nil {
		t.Errorf("a kernel without the sysctl: %v, %v", got, err)
	}
	for _, text := range []string{"x", "3-", "1-70000"} {
		setSysctl(t, tree, reservedPorts, text)
		if got, err := tree.reservedPorts(); err == nil {
			t.Errorf("reserved %q: %v, want an error", text, got)
		}
	}
	var many kernel.Ports
	for port := 1; port < 1<<16; port += 2 {
		many = append(many, kernel.PortRange{First: uint16(port), Last: uint16(port)})
	}
	for _, ports := range []kernel.Ports{nil, {{First: 8080, Last: 8080}, {First: 9000, Last: 9010}}, many} {
		setSysctl(t, tree, reservedPorts, "")
		if err := tree.reservePorts(ports); err != nil {
			t.Error(err)
		}
		if got, err := tree.reservedPorts(); err != nil || !slices.Equal(got, ports) {
			t.Errorf("%d reserved ports: %d, %v", len(ports), len(got), err)
		}
	}
}
