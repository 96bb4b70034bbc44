package coexist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// programs are iptables' programs, which can be made to hang and to fail.
type programs struct {
	t   *testing.T
	dir string
}

func newPrograms(t *testing.T) programs {
	t.Helper()
	p := programs{t, t.TempDir()}
	for _, variant := range []string{"nft", "legacy"} {
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, suffix := range []string{"", "-save", "-restore"} {
				name := family + "-" + variant + suffix
				real, err := exec.LookPath(name)
				if err != nil {
					t.Fatal(err)
				}
				script := fmt.Sprintf("#!/bin/sh\nwhile [ -e %[1]s/hang ]; do sleep 1; done\n[ -e %[1]s/fail ] && exit 1\nexec %[2]s \"$@\"\n", p.dir, real)
				if err := os.WriteFile(filepath.Join(p.dir, name), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return p
}

// become makes the programs hang or fail; "" makes them work.
func (p programs) become(state string) {
	p.t.Helper()
	for _, other := range []string{"hang", "fail"} {
		_ = os.Remove(filepath.Join(p.dir, other)) // it may not exist
	}
	if state == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(p.dir, state), nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// ofPrograms is a node whose agent's programs hang and fail.
type ofPrograms struct {
	*cluster.Node
	t   *testing.T
	far service
}

// servedBy waits until the Service leads to a pod, in both families.
func (n ofPrograms) servedBy(server *cluster.Pod) {
	n.t.Helper()
	cluster.Eventually(n.t, patience, "both families go to "+server.Name, func() error {
		for _, f := range both {
			out, err := n.Run("ipvsadm", "-Ln", "-t", n.far.at(f, http))
			if err != nil {
				return err
			}
			if !strings.Contains(out, server.Addr(f).String()) {
				return fmt.Errorf("it goes to %s", out)
			}
		}
		return nil
	})
}

// isHealthy waits until /healthz and the metric say whether iptables works.
func (n ofPrograms) isHealthy(healthy bool) {
	n.t.Helper()
	status, text, zero := 503, "iptables has not worked", false
	if healthy {
		status, text, zero = 200, "", true
	}
	cluster.Eventually(n.t, 2*patience, fmt.Sprintf("/healthz is %d", status), func() error {
		page, err := n.HTTPGet("http://127.0.0.1:10256/healthz", slowly)
		if err != nil {
			return err
		}
		if page.Status != status || !strings.Contains(page.Body, text) {
			return fmt.Errorf("it is %d: %s", page.Status, page.Body)
		}
		return nil
	})
	page, err := n.HTTPGet("http://127.0.0.1:10249/metrics", slowly)
	if err != nil {
		n.t.Fatal(err)
	}
	if strings.Contains(page.Body, `kube_ipvs_stuck_since_timestamp_seconds{part="iptables"} 0`+"\n") != zero {
		n.t.Errorf("the metric says that iptables works: %t", !zero)
	}
}

// TestProgramsHang starts an agent while iptables hangs. It serves the endpoints of both families anyway. Without its rules, which it cannot
// repair, the node is not healthy, whether the programs hang or fail, until they work again.
func TestProgramsHang(t *testing.T) {
	cluster.NeedIPTables(t, "nftables needs no programs")
	w := onWorld(t)
	node, broken, dir := ofPrograms{w.node3, t, w.farService()}, newPrograms(t), t.TempDir()
	write := func(server *cluster.Pod) {
		t.Helper()
		to := node.far
		to.server = server
		if err := cluster.WriteManifests(dir, "services", to.manifest()); err != nil {
			t.Fatal(err)
		}
	}
	start := func() *cluster.Process {
		t.Helper()
		p, err := node.StartCommand(cluster.Command{
			Args: []string{cluster.AgentBinary(t), "run", "--manifests", dir, "--hostname-override", node.Name, "--cluster-cidr", podCIDRs,
				"--conntrack-max-per-core", "0", "--ipvs-sync-period", period.String()},
			Env: append(os.Environ(), "PATH="+broken.dir+":"+os.Getenv("PATH")),
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	write(w.far)
	agent := start()
	agent.AwaitLog(t, patience, "initial sync complete")
	node.servedBy(w.far)
	if err := agent.Stop(patience); err != nil {
		t.Fatal(err)
	}
	broken.become("hang")
	write(w.near)
	agent = start()
	node.servedBy(w.near)
	node.MustRun(t, "nft", "flush", "ruleset")
	node.isHealthy(false)
	broken.become("fail")
	write(w.far)
	node.servedBy(w.far)
	node.isHealthy(false)
	broken.become("")
	node.isHealthy(true)
	if ruleTraces(t, node.Node, "iptables") == "" {
		t.Error("healthy without rules")
	}
	for _, f := range both {
		w.spareClient.Get(t, cluster.TCP, node.far.at(f, http))
	}
	if err := agent.Stop(patience); err != nil {
		t.Error(err)
	}
	if out, err := cleanup(t, node.Node); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
