package coexist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// programs replaces the iptables programs with scripts that can hang or fail.
type programs struct {
	t   *testing.T
	dir string
}

func newPrograms(t *testing.T) programs {
	t.Helper()
	p := programs{t, t.TempDir()}
	for _, variant := range []string{"nft", "legacy"} {
		for _, family := range bothPrograms {
			for _, suffix := range []string{"", "-save", "-restore"} {
				name := family + "-" + variant + suffix
				real, err := exec.LookPath(name)
				if err != nil {
					t.Fatal(err)
				}
				script := fmt.Sprintf("#!/bin/sh\nwhile [ -e %[1]s/hang-%[2]s ]; do sleep 1; done\n[ -e %[1]s/fail-%[2]s ] && exit 1\nexec %[3]s \"$@\"\n",
					p.dir, family, real)
				if err := os.WriteFile(filepath.Join(p.dir, name), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return p
}

var bothPrograms = []string{"iptables", "ip6tables"}

func (p programs) become(state string, families ...string) {
	p.t.Helper()
	for _, other := range []string{"hang", "fail"} {
		for _, family := range bothPrograms {
			_ = os.Remove(filepath.Join(p.dir, other+"-"+family)) // it may not exist
		}
	}
	for _, family := range families {
		if err := os.WriteFile(filepath.Join(p.dir, state+"-"+family), nil, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
}

type ofPrograms struct {
	*cluster.Node
	t         *testing.T
	far       service
	programs  programs
	manifests string
}

func newOfPrograms(t *testing.T, w *world) ofPrograms {
	t.Helper()
	return ofPrograms{w.node3, t, w.farService(), newPrograms(t), t.TempDir()}
}

func (n ofPrograms) write(server *cluster.Pod) {
	n.t.Helper()
	to := n.far
	to.server = server
	if err := cluster.WriteManifests(n.manifests, "services", to.manifest()); err != nil {
		n.t.Fatal(err)
	}
}

func (n ofPrograms) start() *cluster.Process {
	n.t.Helper()
	p, err := n.StartCommand(cluster.Command{
		Args: []string{cluster.AgentBinary(n.t), "run", "--manifests", n.manifests, "--hostname-override", n.Name, "--cluster-cidr", podCIDRs,
			"--conntrack-max-per-core", "0", "--ipvs-sync-period", period.String()},
		Env: append(os.Environ(), "PATH="+n.programs.dir+":"+os.Getenv("PATH")),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

func (n ofPrograms) end(agent *cluster.Process) {
	n.t.Helper()
	if err := agent.Stop(patience); err != nil {
		n.t.Error(err)
	}
	if out, err := cleanup(n.t, n.Node); err != nil {
		n.t.Errorf("%v: %s", err, out)
	}
}

func (n ofPrograms) servedBy(server *cluster.Pod, families ...cluster.Family) {
	n.t.Helper()
	cluster.Eventually(n.t, patience, fmt.Sprint(families, " go to ", server.Name), func() error {
		for _, f := range families {
			out, err := n.Run("ipvsadm", "-Ln", "-t", n.far.at(f, http))
			if err != nil {
				return err
			}
			if !strings.Contains(out, server.Addr(f).String()) {
				return fmt.Errorf("the connection reached %s", out)
			}
		}
		return nil
	})
}

// isHealthy waits until /healthz and the metric report only the programs in except as failing.
func (n ofPrograms) isHealthy(except ...string) {
	n.t.Helper()
	status := 200
	if len(except) > 0 {
		status = 503
	}
	cluster.Eventually(n.t, 2*patience, fmt.Sprintf("/healthz is %d", status), func() error {
		page, err := n.HTTPGet("http://127.0.0.1:10256/healthz", slowly)
		if err != nil {
			return err
		}
		for _, program := range bothPrograms {
			named := strings.Contains(page.Body, program+" has not worked")
			if page.Status != status || named != slices.Contains(except, program) {
				return fmt.Errorf("the status is %d: %s", page.Status, page.Body)
			}
		}
		return nil
	})
	page, err := n.HTTPGet("http://127.0.0.1:10249/metrics", slowly)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, program := range bothPrograms {
		zero := fmt.Sprintf("kube_ipvs_stuck_since_timestamp_seconds{part=%q} 0\n", program)
		if works := strings.Contains(page.Body, zero); works == slices.Contains(except, program) {
			n.t.Errorf("the metric reports that %s works: %t", program, works)
		}
	}
}

// While the programs hang or fail, the agent cannot repair its rules, but it still follows endpoint changes.
func TestProgramsHang(t *testing.T) {
	cluster.NeedIPTables(t, "nftables needs no programs")
	w := onWorld(t)
	node := newOfPrograms(t, w)
	node.write(w.far)
	agent := node.start()
	agent.AwaitLog(t, patience, "initial sync complete")
	node.servedBy(w.far, both...)
	if err := agent.Stop(patience); err != nil {
		t.Fatal(err)
	}
	node.programs.become("hang", bothPrograms...)
	node.write(w.near)
	agent = node.start()
	node.servedBy(w.near, both...)
	node.MustRun(t, "nft", "flush", "ruleset")
	node.isHealthy(bothPrograms...)
	node.programs.become("fail", bothPrograms...)
	node.write(w.far)
	node.servedBy(w.far, both...)
	node.isHealthy(bothPrograms...)
	node.programs.become("")
	node.isHealthy()
	if ruleTraces(t, node.Node, "iptables") == "" {
		t.Error("the node is healthy although it has no rules")
	}
	for _, f := range both {
		w.spareClient.Get(t, cluster.TCP, node.far.at(f, http))
	}
	node.end(agent)
}

// While only ip6tables hangs, the agent serves IPv4 and repairs its rules. The node is unhealthy.
func TestIP6TablesHangs(t *testing.T) {
	cluster.NeedIPTables(t, "nftables needs no programs")
	w := onWorld(t)
	node := newOfPrograms(t, w)
	node.programs.become("hang", "ip6tables")
	node.write(w.near)
	agent := node.start()
	node.servedBy(w.near, cluster.V4)
	node.isHealthy("ip6tables")
	node.MustRun(t, "nft", "flush", "ruleset")
	cluster.Eventually(t, patience, "the rules of IPv4 are repaired", func() error {
		if out := node.MustRun(t, "iptables-save"); !strings.Contains(out, "KUBE-") {
			return fmt.Errorf("the rules are %s", out)
		}
		return nil
	})
	node.write(w.far)
	node.servedBy(w.far, cluster.V4)
	w.spareClient.Get(t, cluster.TCP, node.far.at(cluster.V4, http))
	node.programs.become("")
	node.isHealthy()
	for _, f := range both {
		w.spareClient.Get(t, cluster.TCP, node.far.at(f, http))
	}
	node.end(agent)
}
