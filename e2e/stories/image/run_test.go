package image

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestKubeadmCluster runs the image in a kubeadm cluster with exactly the chart's permissions, mounts and privileges.
func TestKubeadmCluster(t *testing.T) {
	labtest.Need(t)
	_ = exec.Command("modprobe", "-r", "ip_vs_sed").Run() // another test may have loaded it
	s := newStage(t)
	t.Run("privileges", s.testPrivileges)
	t.Run("probes", s.testProbes)
	t.Run("metrics", s.testMetrics)
	t.Run("traffic", s.testTraffic)
	t.Run("modules", s.testModules)
	t.Run("sysctls", s.testSysctls)
	t.Run("datagrams leave an endpoint", s.testDatagramsLeave)
	t.Run("commands", s.testCommands)
	t.Run("restart", s.testRestart)
	t.Run("legacy host", s.testLegacyHost)
	t.Run("every value", s.testEveryValue)
	t.Run("nothing was refused", s.testNothingRefused)
	t.Run("cleanup", s.testCleanup)
}

// testPrivileges compares the agents' privileges in /proc with those that the chart requests.
func (s *stage) testPrivileges(t *testing.T) {
	for i, agent := range s.agents {
		status := fields(t, agent.PID)
		want := "0000000000003000" // NET_ADMIN and NET_RAW
		for field, value := range map[string]string{
			"CapBnd": want, "CapPrm": want, "CapEff": want, "CapInh": "0000000000000000", "CapAmb": "0000000000000000",
			"NoNewPrivs": "1", "Seccomp": "2", "Uid": "0\t0\t0\t0",
		} {
			if status[field] != value {
				t.Errorf("%s: %s is %q, want %q", agent.Name, field, status[field], value)
			}
		}
		if status["NSpid"] != fmt.Sprintf("%d\t1", agent.PID) {
			t.Errorf("NSpid is %q: the agent is not the first process of its container", status["NSpid"])
		}
		options := mountOptions(t, agent.PID)
		for _, m := range []struct {
			place    string
			readOnly bool
		}{
			{"/", true}, {"/proc/sys", true}, {"/sys", true}, {"/var/lib/kube-proxy", true},
			{"/host/proc/sys/net", false}, {"/run/xtables.lock", false}, {"/run/kube-ipvs", false},
		} {
			if have, ok := options[m.place]; !ok || slices.Contains(have, "ro") != m.readOnly {
				t.Errorf("node %d: %s is mounted with %v, want read-only %t", i+1, m.place, have, m.readOnly)
			}
		}
	}
}

func fields(t *testing.T, pid int) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(string(read(t, fmt.Sprintf("/proc/%d/status", pid)))) {
		name, value, _ := strings.Cut(line, ":")
		all[name] = strings.TrimSpace(value)
	}
	return all
}

func mountOptions(t *testing.T, pid int) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for line := range strings.Lines(string(read(t, fmt.Sprintf("/proc/%d/mountinfo", pid)))) {
		words := strings.Fields(line)
		all[words[4]] = strings.Split(words[5], ",")
	}
	return all
}

func (s *stage) testProbes(t *testing.T) {
	for _, p := range s.pods {
		ports := map[string]int32{}
		for _, port := range p.container().Ports {
			ports[port.Name] = port.ContainerPort
		}
		c := p.container()
		for _, path := range []string{c.StartupProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path} {
			at := net.JoinHostPort(p.node.V4.String(), strconv.Itoa(int(ports["health"])))
			if page, err := p.node.HTTPGet("http://" + at + path); err != nil || page.Status != 200 {
				t.Errorf("%s of %s: %v, %d %s", path, p.node.Name, err, page.Status, page.Body)
			}
		}
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(ports["metrics"])))
		if page, err := p.node.HTTPGet("http://" + at + "/proxyMode"); err != nil || page.Body != "ipvs" {
			t.Errorf("/proxyMode of %s: %v, %q", p.node.Name, err, page.Body)
		}
	}
}

func (s *stage) testTraffic(t *testing.T) {
	for _, family := range s.FamilyList() {
		for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
			service := at(clusterIPs[family], 80)
			answered := s.caller.Spread(t, 4, proto, service)
			if answered["here"] != 2 || answered["far"] != 2 {
				t.Errorf("%s over %s: 4 connections went to %v, want 2 to each endpoint", service, proto, answered)
			}
			for range 2 { // one connection for each endpoint
				if got := s.caller.Get(t, proto, service); got.Source != s.caller.Addr(family) {
					t.Errorf("%s over %s: %s sees %s, want the pod", service, proto, got.Server, got.Source)
				}
				if got := s.outside.Get(t, proto, service); got.Source != s.Nodes[0].Addr(family) && got.Server == "far" {
					t.Errorf("%s over %s: %s sees %s, want the node, because outside clients are masqueraded", service, proto, got.Server, got.Source)
				}
				if got := s.here.Get(t, proto, service); got.Server == "here" && got.Source == s.here.Addr(family) {
					t.Errorf("%s over %s: the pod reached itself without masquerading", service, proto)
				}
				if got := s.outside.Get(t, proto, s.Nodes[1].At(family, nodePort)); got.Server == "here" && got.Source != s.Nodes[1].Addr(family) {
					t.Errorf("node port over %s: %s sees %s, want the node", proto, got.Server, got.Source)
				}
			}
		}
	}
}

func at(address string, port int) string { return net.JoinHostPort(address, strconv.Itoa(port)) }

// testModules checks that the kernel loads a scheduler's module when the agent first uses it.
func (s *stage) testModules(t *testing.T) {
	if _, err := os.Stat("/sys/module/ip_vs_sed"); err == nil {
		t.Log("ip_vs_sed is built in or in use")
	}
	s.apply(t, `
apiVersion: v1
kind: Service
metadata: {name: sed, namespace: default, annotations: {kube-ipvs.io/scheduler: sed}}
spec: {clusterIP: 10.96.0.11, ports: [{port: 80}]}
`)
	cluster.Eventually(t, patience, "the virtual server uses the scheduler sed", func() error {
		servers, err := s.Nodes[0].VirtualServers()
		if have := servers["TCP 10.96.0.11:80"].Scheduler; err == nil && have != "sed" {
			err = fmt.Errorf("the scheduler is %q", have)
		}
		return err
	})
}

// The agent can set these sysctls only through the chart's mount, because the container's own /proc/sys is
// read-only.
func (s *stage) testSysctls(t *testing.T) {
	for _, node := range s.Nodes {
		for _, key := range []string{"net/ipv4/vs/conntrack", "net/ipv4/vs/expire_nodest_conn"} {
			if value, err := node.Sysctl(key); err != nil || value != "1" {
				t.Errorf("%s: %s is %q (%v), want 1", node.Name, key, value, err)
			}
		}
	}
}

func (s *stage) testDatagramsLeave(t *testing.T) {
	conn := s.caller.Open(t, cluster.UDP, at(clusterIPs[cluster.V4], 80))
	first := conn.MustPing(t).Server
	stays := map[string]*cluster.Pod{"here": s.far, "far": s.here}[first]
	s.apply(t, s.services(stays))
	cluster.Eventually(t, patience, "the flow reaches the remaining endpoint", func() error {
		if got, err := conn.Ping(); err != nil || got.Server != stays.Name {
			return fmt.Errorf("answered by %s (%v)", got.Server, err) //nolint:errorlint // may be nil
		}
		return nil
	})
	s.apply(t, s.services(s.here, s.far))
}

func (s *stage) testCommands(t *testing.T) {
	node := s.Nodes[0]
	for _, c := range []struct {
		want string
		args []string
	}{
		{"10.96.0.10:80", []string{"ipvsadm", "-Ln"}},
		{"[fd00:50::11]:30080/udp", []string{"services"}},
		{"10.96.0.10:80", []string{"conns"}},
		{"10.244.1.", []string{"explain", "10.96.0.10:80", "--from", s.caller.V4.String()}},
		{"last full sync", []string{"status"}},
	} {
		if out := s.exec(t, node, c.args...); !strings.Contains(out, c.want) {
			t.Errorf("kube-ipvs %s does not show %q:\n%s", strings.Join(c.args, " "), c.want, out)
		}
	}
	args := append([]string{"preflight"}, s.pods[0].arguments()[1:]...)
	if out := s.exec(t, node, append(args, inNamespace)...); strings.Contains(strings.ToLower(out), "capabilit") {
		t.Errorf("preflight lacks a privilege:\n%s", out)
	}
	args = append([]string{"plan"}, s.pods[0].arguments()[1:]...)
	if out := s.exec(t, node, append(args, inNamespace)...); strings.TrimSpace(out) != "" {
		t.Errorf("preflight fails:\n%s", out)
	}
}

func (s *stage) testRestart(t *testing.T) {
	flows := s.caller.OpenFlows(t, 10, cluster.TCP, at(clusterIPs[cluster.V4], 80), cluster.FlowConfig{
		Every: time.Second, Within: 30 * time.Second, Max: 10 * time.Minute,
	})
	for _, node := range s.Nodes {
		s.restart(t, node)
	}
	flows.AwaitRound(t, patience)
	flows.MustBeUnharmed(t)
	s.testTraffic(t)
}

// The agent must use iptables-legacy, and share its lock, on a host whose kubelet uses it.
func (s *stage) testLegacyHost(t *testing.T) {
	node := s.Nodes[1]
	for _, command := range []string{"iptables-legacy", "ip6tables-legacy"} {
		node.MustRun(t, command, "-w", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
	}
	release := s.lock(t, node)
	s.stop(t, node)
	s.startOn(t, node)
	cluster.Eventually(t, patience, "the agent logs that it waits for the xtables lock", func() error {
		if log := s.agents[1].Log(); !strings.Contains(log, "xtables lock") {
			return fmt.Errorf("its log:\n%s", log)
		}
		return nil
	})
	release()
	s.restart(t, node)
	for _, command := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
		if rules := node.MustRun(t, command); !strings.Contains(rules, "KUBE-IPVS-FILTER") {
			t.Errorf("%s shows no rules of the agent, although the kubelet uses the legacy tables:\n%s", command, rules)
		}
	}
	s.testTraffic(t)
}

// lock acquires iptables-legacy's lock on a node.
func (s *stage) lock(t *testing.T, node *cluster.Node) (release func()) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(s.pods[node.Index-1].files, "run/xtables.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { file.Close() }
}

func (s *stage) testEveryValue(t *testing.T) {
	manifest := string(read(t, checkout+"/e2e/chart/testdata/everything.golden.yaml"))
	manifest = strings.NewReplacer(`"fd00::1"`, `"`+apiAddress+`"`, `"443"`, `"6443"`).Replace(manifest)
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		if !strings.Contains(document, "apiVersion: monitoring.coreos.com/") { // kinds that only the Prometheus operator defines
			s.apply(t, document)
		}
	}
	s.pods[1] = s.newPod(t, s.Nodes[1], "ipvs")
	s.restart(t, s.Nodes[1])
	s.testProbes(t)
	s.testTraffic(t)
	if agent := s.agents[1].Log(); !strings.Contains(agent, `"msg"`) {
		t.Errorf("the log is not JSON, as configured:\n%s", agent)
	}
}

func (s *stage) testNothingRefused(t *testing.T) {
	for line := range strings.Lines(s.logs()) {
		for _, refusal := range []string{"permission denied", "not permitted", "read-only file system", "Permission denied", "forbidden"} {
			if strings.Contains(line, refusal) {
				t.Errorf("the kernel or the API server refused an operation: %s", line)
			}
		}
	}
}

func (s *stage) testCleanup(t *testing.T) {
	for _, node := range s.Nodes {
		s.stop(t, node)
		s.exec(t, node, "cleanup")
		if out := s.exec(t, node, "cleanup", "--dry-run"); !strings.Contains(out, "no objects of kube-ipvs on this node") {
			t.Errorf("%s: cleanup left something:\n%s", node.Name, out)
		}
		if out, err := node.Run("ip", "link", "show", "kube-ipvs0"); err == nil {
			t.Errorf("%s: cleanup left the device:\n%s", node.Name, out)
		}
		if servers, err := node.VirtualServers(); err != nil || len(servers) > 0 {
			t.Errorf("%s: cleanup left virtual servers: %v, %v", node.Name, servers, err)
		}
	}
}
