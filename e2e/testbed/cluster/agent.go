package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// AgentBinary returns the path of the program under test.
func AgentBinary(t T) string {
	t.Helper()
	path := os.Getenv("KUBE_IPVS_AGENT")
	if path == "" {
		t.Fatalf("KUBE_IPVS_AGENT is not set: it must be the path of the kube-ipvs binary to test; use `make e2e`, which builds it")
	}
	return path
}

// Mode returns the data plane mode of this run's agents.
func Mode() kernel.Mode {
	switch {
	case os.Getenv("KUBE_IPVS_DATA_PLANE") == kernel.DataPlaneNFTables:
		return kernel.NFTablesOnly
	case os.Getenv("KUBE_IPVS_DATA_PLANE") == kernel.DataPlaneUserspace:
		return kernel.Userspace
	case os.Getenv("KUBE_IPVS_RULES") == kernel.RulesNFTables:
		return kernel.IPVSWithNFTables
	}
	return kernel.IPVSWithIPTables
}

// NFTables reports whether this run's agents keep sets and rules in nftables.
func NFTables() bool { return Mode().RulesInNFTables() }

// Balancing reports whether this run's agents balance with nftables instead of IPVS.
func Balancing() bool { return Mode().NFTablesBalances() }

// Userspace reports whether this run's agents forward connections in their own process, at the addresses of Services.
func Userspace() bool { return Mode() == kernel.Userspace }

// DataPlaneFlags returns the flags that select this run's data plane, and how its agents bind addresses.
func DataPlaneFlags() (flags []string) {
	switch {
	case Balancing():
		flags = append(flags, "--data-plane", "nftables")
	case Userspace():
		flags = append(flags, "--data-plane", "userspace", "--forward-addresses", "services")
	}
	if binding := os.Getenv("KUBE_IPVS_ADDRESSES"); binding != "" {
		flags = append(flags, "--addresses", binding)
	}
	return flags
}

// VirtualClock reports whether this kernel's clock jumps to the next timer when all programs wait.
func VirtualClock() (bool, error) {
	cmdline, err := os.ReadFile("/proc/cmdline")
	return strings.Contains(string(cmdline), "time-travel=inf-cpu"), err
}

// NeedPauses is for tests that look for gaps. On a virtual clock, it requires an agent that pauses after each
// write: otherwise, an update takes no time, and no packet can arrive during it.
func NeedPauses(t T) {
	t.Helper()
	virtual, err := VirtualClock()
	if err != nil {
		t.Fatalf("cannot detect a virtual clock: %v", err)
	}
	if virtual && os.Getenv("KUBE_IPVS_PAUSE") == "" {
		t.Fatalf("on a virtual clock, this test finds gaps only if the agent pauses; use make e2e PAUSE=1")
	}
}

// Size returns the size of a test: small, or full in the parts of make nightly that measure the scoreboard (SIZE=full).
func Size(small, full int) int {
	if os.Getenv("KUBE_IPVS_SIZE") == "full" {
		return full
	}
	return small
}

// KilledAfter returns a command that runs the agent and kills it after its n-th write to the kernel.
func KilledAfter(n int, agent ...string) []string {
	return append([]string{"env", fmt.Sprintf("KUBE_IPVS_KILL_AFTER=%d", n)}, agent...)
}

// Previous returns a command that runs the previous version of the agent (see the Makefile's target previous).
func Previous(agent ...string) []string {
	return append([]string{"env", "KUBE_IPVS_PREVIOUS=1"}, agent...)
}

// NeedIPVS skips a test of a feature that only IPVS supports.
func NeedIPVS(t testing.TB, reason string) {
	t.Helper()
	if !Mode().IPVSBalances() {
		t.Skip(reason)
	}
}

// NeedKernel skips a test of behavior that differs or is missing where the agent's process forwards connections.
func NeedKernel(t testing.TB, reason string) {
	t.Helper()
	if Userspace() {
		t.Skip(reason)
	}
}

// NeedIPTables skips a test of behavior that differs or is missing with nftables.
func NeedIPTables(t testing.TB, reason string) {
	t.Helper()
	if NFTables() {
		t.Skip(reason)
	}
}

// WriteManifests atomically writes a file to an agent's manifest directory.
func WriteManifests(dir, name, manifests string) error {
	hidden := filepath.Join(dir, "."+name)
	if err := os.WriteFile(hidden, []byte(manifests), 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, filepath.Join(dir, name+".yaml"))
}
