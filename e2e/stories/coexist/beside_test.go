package coexist

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

// iptablesConfig sets no conntrack limits, because they can be set only in the initial network namespace.
const iptablesConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// besideFlags are the flags in docs/side-by-side.md: a proxy name, and ports that kube-proxy does not use.
var besideFlags = []string{"--service-proxy-name", "kube-ipvs", "--healthz-bind-address", "0.0.0.0:10356",
	"--metrics-bind-address", "127.0.0.1:10349"}

func given(s service, proxy string) string {
	if proxy == "" {
		return s.manifest()
	}
	label := "labels: {service.kubernetes.io/service-proxy-name: " + proxy
	slices := strings.ReplaceAll(s.manifest(), "labels: {", label+", ")
	return strings.Replace(slices, "namespace: default}\nspec", "namespace: default, "+label+"}}\nspec", 1)
}

type duo struct {
	*world
	node                *cluster.Node
	api                 *controlplane.ControlPlane
	theirs, ours        service
	kubeProxy, kubeIPVS func() *cluster.Process
}

func (w *world) newDuo(t *testing.T) *duo {
	t.Helper()
	d := &duo{world: w, node: w.node3, theirs: w.farService(), ours: w.nearService()}
	proxy, agent := kubeProxy(t), cluster.AgentBinary(t)
	var config string
	d.api, config = w.controlPlane(t)
	d.give(t, d.ours, "kube-ipvs")
	file := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, iptablesConfig, d.node.Name, podCIDRs, config), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) *cluster.Process {
		p := d.node.MustStart(t, args...)
		t.Cleanup(p.Kill)
		return p
	}
	d.kubeProxy = func() *cluster.Process { return start(proxy, "--config", file, "-v=2") }
	d.kubeIPVS = func() *cluster.Process {
		return start(append([]string{agent, "run", "--kubeconfig", config, "--hostname-override", d.node.Name,
			"--cluster-cidr", podCIDRs, "--conntrack-max-per-core", "0"}, besideFlags...)...)
	}
	t.Cleanup(func() { w.wipe(t, d.node) })
	return d
}

func (d *duo) give(t *testing.T, s service, proxy string) {
	t.Helper()
	if err := d.api.Apply(t.Context(), given(s, proxy)); err != nil {
		t.Fatal(err)
	}
}

func (d *duo) paths(f cluster.Family, s service) (all []path) {
	for _, p := range ports {
		for _, from := range []*cluster.Host{d.spareClient.Host, d.node.Host, d.outside} {
			source := d.node.Addr(f)
			if from == d.spareClient.Host {
				source = from.Addr(f)
			}
			if from != d.outside { // because the router sends packets for ClusterIPs to another node
				all = append(all, path{from, p.protocol, s.at(f, p), s.server.Name, source})
			}
			all = append(all, path{from, p.protocol, s.atNode(f, p, d.node), s.server.Name, d.node.Addr(f)})
		}
	}
	return all
}

func (d *duo) bothServe(t *testing.T, when string, inIPVS ...service) {
	t.Helper()
	for _, f := range both {
		for _, p := range append(d.paths(f, d.theirs), d.paths(f, d.ours)...) {
			cluster.Eventually(t, proxyPatience, when, p.walk)
		}
	}
	servers, err := d.node.VirtualServers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []service{d.theirs, d.ours} {
		_, found := servers[cluster.VirtualKey(cluster.TCP, s.at(cluster.V4, http))]
		wanted := false
		for _, in := range inIPVS {
			wanted = wanted || in.name == s.name
		}
		inRules := strings.Contains(d.node.MustRun(t, "iptables-save", "-t", "nat"), "-d "+s.ip(cluster.V4).String())
		if found != wanted || inRules == wanted {
			t.Errorf("%s: Service %s is in IPVS: %t, in kube-proxy's rules: %t; want it in IPVS: %t", when, s.name, found, inRules, wanted)
		}
	}
}

// TestBesideKubeProxy runs kube-proxy in iptables mode and the agent on the same node, each with its own Service.
func TestBesideKubeProxy(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	d := w.newDuo(t)
	theirs, ours := d.kubeProxy(), d.kubeIPVS()
	ours.AwaitLog(t, patience, "initial sync complete")
	d.bothServe(t, "both have started", d.ours)

	toTheirs := d.spareClient.OpenFlows(t, 4, cluster.TCP, d.theirs.at(cluster.V4, http), cluster.FlowConfig{Within: patience, Max: time.Hour})
	toOurs := d.spareClient.OpenFlows(t, 4, cluster.TCP, d.ours.at(cluster.V4, http), cluster.FlowConfig{Within: patience, Max: time.Hour})
	together := time.Duration(cluster.Size(1, 60)) * time.Second
	time.Sleep(together)
	end(t, theirs)
	theirs = d.kubeProxy()
	theirs.AwaitLog(t, proxyPatience, "SyncProxyRules complete")
	end(t, ours)
	ours = d.kubeIPVS()
	ours.AwaitLog(t, patience, "initial sync complete")
	d.bothServe(t, "both were restarted", d.ours)

	d.give(t, d.theirs, "kube-ipvs")
	cluster.Eventually(t, patience, "kube-proxy has released the Service", func() error {
		if strings.Contains(d.node.MustRun(t, "iptables-save", "-t", "nat"), "-d "+d.theirs.ip(cluster.V4).String()) {
			return fmt.Errorf("kube-proxy's rules still exist")
		}
		return nil
	})
	d.bothServe(t, "the label moved kube-proxy's Service to the agent", d.ours, d.theirs)
	toTheirs.AwaitRound(t, patience)
	toOurs.AwaitRound(t, patience)
	for of, flows := range map[string]*cluster.Flows{"kube-proxy": toTheirs, "kube-ipvs": toOurs} {
		t.Attr("figure", fmt.Sprintf("%v together, then each restarted, a Service of %s: %s", together, of, flows.MustBeUnharmed(t).Summary()))
	}

	moved := d.spareClient.OpenFlows(t, 4, cluster.TCP, d.theirs.at(cluster.V4, http), cluster.FlowConfig{Within: patience, Max: time.Hour})
	d.give(t, d.theirs, "")
	cluster.Eventually(t, patience, "the agent has released the Service", func() error {
		servers, err := d.node.VirtualServers()
		if _, found := servers[cluster.VirtualKey(cluster.TCP, d.theirs.at(cluster.V4, http))]; found {
			return fmt.Errorf("the agent's virtual server still exists")
		}
		return err
	})
	d.bothServe(t, "without the label the Service is kube-proxy's again", d.ours)
	if report := moved.Stop(); report.Unharmed() {
		t.Errorf("connections made through the agent survived the move back to kube-proxy; docs/side-by-side.md says they do not: %s", report)
	}

	end(t, ours)
	out, err := cleanup(t, d.node) // needs no flags: the kernel state identifies the objects of kube-ipvs
	if err != nil {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
	for _, f := range both {
		for _, p := range d.paths(f, d.theirs) {
			if err := p.walk(); err != nil {
				t.Errorf("the Service does not answer after the agent's cleanup: %v", err)
			}
		}
	}
	for _, rules := range rulesOf(t, d.node) {
		if strings.Contains(rules, "KUBE-IPVS-") || strings.Contains(rules, "KIPVS-") {
			t.Errorf("leftover kube-ipvs rules:\n%s", rules)
		}
	}
	end(t, theirs)
}
