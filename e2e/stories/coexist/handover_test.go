package coexist

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/stories/guides"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// kubeProxyConfig sets no conntrack limits, because they can be set only in the initial network namespace.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
ipvs: {syncPeriod: 15m, strictARP: true}
`

// script returns the script in docs/replace-kube-proxy.md.
func script(t *testing.T) string {
	t.Helper()
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := guides.Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, page := range pages {
		for _, block := range page.Blocks {
			if strings.HasPrefix(block.NotRun, "e2e/stories/coexist runs this script") {
				found = append(found, strings.Join(block.Text, "\n"))
			}
		}
	}
	if len(found) != 1 {
		t.Fatalf("docs/replace-kube-proxy.md has %d scripts, want one", len(found))
	}
	return found[0]
}

// TestHandover replaces kube-proxy with the agent and switches back. Open connections survive both switches, and
// new connections from pods never fail.
func TestHandover(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	h := &handover{world: w, node: w.node3, proxy: kubeProxy(t)}
	_, h.config = w.controlPlane(t)
	t.Cleanup(func() { w.wipe(t, h.node) })
	h.theirs = h.startProxy(t)
	w.awaitServed(t, h.node)
	far := w.farService()
	paths := []path{
		{w.spareClient.Host, cluster.TCP, far.at(cluster.V4, http), "web-2", w.spareClient.V4},
		{w.spareClient.Host, cluster.TCP, far.at(cluster.V6, http), "web-2", w.spareClient.V6},
		{w.outside, cluster.TCP, far.atNode(cluster.V4, http, h.node), "web-2", h.node.V4},
		{w.outside, cluster.TCP, far.atNode(cluster.V6, http, h.node), "web-2", h.node.V6},
	}
	var watching []*watcher
	for _, p := range paths {
		p.from.Await(t, patience, p.proto, p.to)
		h.flows = append(h.flows, p.from.OpenFlows(t, 4, p.proto, p.to, cluster.FlowConfig{Within: patience, Max: 2 * time.Hour}))
		watching = append(watching, watch(t, p, slowly))
	}
	times := cluster.Size(1, 10)
	for range times {
		h.there(t)
		h.back(t)
	}
	end(t, h.theirs)
	for _, rules := range rulesOf(t, h.node) {
		if strings.Contains(rules, "kube-ipvs:") || strings.Contains(rules, "KIPVS-") {
			t.Errorf("leftover kube-ipvs rules:\n%s", rules)
		}
	}
	for i, f := range h.flows {
		t.Attr("figure", fmt.Sprintf("%d handovers there and back, %s: %s", times, paths[i].to, f.MustBeUnharmed(t).Summary()))
	}
	reportProblems(t, watching)
}

type handover struct {
	*world
	node          *cluster.Node
	proxy, config string
	ours, theirs  *cluster.Process
	flows         []*cluster.Flows
}

func (h *handover) startProxy(t *testing.T) *cluster.Process {
	t.Helper()
	return h.startKubeProxy(t, h.proxy, h.config, "ipvs")
}

func (h *handover) round(t *testing.T) {
	t.Helper()
	for _, f := range h.flows {
		f.AwaitRound(t, patience)
	}
}

// there replaces kube-proxy with the agent.
func (h *handover) there(t *testing.T) {
	t.Helper()
	end(t, h.theirs)
	socket := filepath.Join(t.TempDir(), "agent.sock")
	h.ours = h.node.MustStart(t, cluster.AgentBinary(t), "run", "--kubeconfig", h.config, "--hostname-override", h.node.Name,
		"--cluster-cidr", podCIDRs, "--conntrack-max-per-core", "0", "--status-socket", socket)
	t.Cleanup(h.ours.Kill)
	h.ours.AwaitLog(t, patience, "initial sync complete")
	h.round(t)
	ledger := h.node.MustRun(t, "ipset", "list", "KIPVS-4-LEDGER")
	if !strings.Contains(ledger, h.farService().ip(cluster.V4).String()+",tcp:80") {
		t.Errorf("the agent did not take over kube-proxy's virtual server:\n%s", ledger)
	}
	if out, err := cleanup(t, h.node, "--kube-proxy-leftovers", "--status-socket", socket); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, rules := range rulesOf(t, h.node) {
		if strings.Contains(rules, "kubernetes ") || strings.Contains(rules, "KUBE-NODE-PORT") {
			t.Errorf("leftover kube-proxy rules:\n%s", rules)
		}
	}
	h.round(t)
}

// back replaces the agent with kube-proxy, as docs/replace-kube-proxy.md says.
func (h *handover) back(t *testing.T) {
	t.Helper()
	end(t, h.ours)
	h.theirs = h.startProxy(t)
	h.awaitTheirs(t, h.node)
	h.round(t)
	h.node.MustRun(t, "sh", "-ec", script(t))
	h.round(t)
}

func reportProblems(t *testing.T, watching []*watcher) {
	t.Helper()
	for _, s := range watching {
		report := s.end()
		t.Log(report)
		if len(s.problems) > 0 {
			t.Error(report)
		}
	}
}

func rulesOf(t *testing.T, node *cluster.Node) []string {
	t.Helper()
	return []string{node.MustRun(t, "iptables-save"), node.MustRun(t, "ip6tables-save")}
}

func end(t *testing.T, p *cluster.Process) {
	t.Helper()
	if err := p.Stop(patience); err != nil {
		t.Logf("%s: %v", p.Name, err) // kube-proxy never exits with status 0
	}
}

func kubeProxy(t *testing.T) string {
	t.Helper()
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	path, err := upstream.Path(root, upstream.KubeProxy)
	if errors.Is(err, upstream.ErrNotBuilt) && os.Getenv(controlplane.RequireVariable) != "1" {
		t.Skipf("SKIPPED, nothing was taken over: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The kubeconfig grants only kube-proxy's permissions.
func (w *world) controlPlane(t *testing.T) (api *controlplane.ControlPlane, kubeconfig string) {
	t.Helper()
	api = controlplane.Start(t, controlplane.Config{
		NetNS:        w.Router.Namespace(),
		BindAddress:  netip.MustParseAddr("192.168.50.1"),
		ReadyTimeout: 5 * time.Minute, // for a busy emulated machine
	})
	node := fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s}
status: {addresses: [{type: InternalIP, address: %q}]}
---`, w.node3.Name, w.node3.V4)
	if err := api.Apply(t.Context(), node+w.farService().manifest()); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := api.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	return api, kubeconfig
}

func (w *world) startKubeProxy(t *testing.T, program, kubeconfig, mode string) *cluster.Process {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeProxyConfig, mode, w.node3.Name, podCIDRs, kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	p := w.node3.MustStart(t, program, "--config", config, "-v=2")
	t.Cleanup(p.Kill)
	return p
}

func (w *world) awaitServed(t *testing.T, node *cluster.Node) {
	t.Helper()
	w.awaitTheirs(t, node)
	cluster.Eventually(t, patience, "kube-proxy serves the Service", func() error {
		servers, err := node.VirtualServers()
		for _, f := range both {
			for _, at := range []string{w.farService().at(f, http), w.farService().atNode(f, http, node)} {
				if len(servers[cluster.VirtualKey(cluster.TCP, at)].Weights) != 1 && err == nil {
					err = fmt.Errorf("no virtual server for %s yet", at)
				}
			}
		}
		return err
	})
}

// kube-proxy is slow here, because it starts a process for each set entry.
const proxyPatience = 8 * time.Minute

func (w *world) awaitTheirs(t *testing.T, node *cluster.Node) {
	t.Helper()
	cluster.Eventually(t, proxyPatience, "kube-proxy has written its rules", func() error {
		for _, f := range both {
			rules := lines(node.MustRun(t, saveProgram(f), "-t", "nat"))
			if !slices.ContainsFunc(rules, func(l string) bool {
				return strings.HasPrefix(l, "-A KUBE-SERVICES") && strings.Contains(l, "CLUSTER-IP") && !strings.Contains(l, "KIPVS-")
			}) {
				return fmt.Errorf("%s does not show kube-proxy's rules:\n%s", saveProgram(f), strings.Join(rules, "\n"))
			}
		}
		return nil
	})
}

// kube-ipvs rejects this Service, because it claims the SSH port of node-3.
const refusedService = `
apiVersion: v1
kind: Service
metadata: {name: refused, namespace: default}
spec: {clusterIP: 10.96.1.77, clusterIPs: [10.96.1.77], ipFamilies: [IPv4], externalIPs: [192.168.50.13], ports: [{protocol: TCP, port: 22}]}
---`

func TestCompareBeforeHandover(t *testing.T) {
	w := onWorld(t)
	node, proxy := w.node3, kubeProxy(t)
	api, config := w.controlPlane(t)
	if err := api.Apply(t.Context(), refusedService); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.wipe(t, node) })
	theirs := w.startKubeProxy(t, proxy, config, "ipvs")
	defer end(t, theirs)
	w.awaitServed(t, node)
	cluster.Eventually(t, patience, "kube-proxy serves the external IP", func() error {
		servers, err := node.VirtualServers()
		if _, exists := servers[cluster.VirtualKey(cluster.TCP, "192.168.50.13:22")]; err == nil && !exists {
			err = fmt.Errorf("the Service is not served yet:\n%s", node.MustRun(t, "ipvsadm", "-Sn"))
		}
		return err
	})
	before := dump(t, node, showAll)
	compare := func(status int, flags ...string) string {
		t.Helper()
		args := append([]string{cluster.AgentBinary(t), "preflight", "--compare", "--kubeconfig", config, "--hostname-override", node.Name, "--cluster-cidr", podCIDRs}, flags...)
		out, err := node.Run(args...)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) != (status != 0) {
			t.Errorf("preflight: %v, want exit status %d\n%s", err, status, out)
		}
		return out
	}
	const closes, changes = "192.168.50.13:22/tcp: Service default/refused: spec.externalIPs[0]", "the scheduler would change from rr to wlc"
	if out := compare(1); !strings.Contains(out, closes) || strings.Contains(out, "scheduler") {
		t.Error(out)
	}
	if out := compare(1, "--ipvs-scheduler=wlc"); !strings.Contains(out, closes) || !strings.Contains(out, changes) {
		t.Error(out)
	}
	const forgets, abandons = "UDP flows would change from 5m0s to 1m0s", "would no longer be updated, because ipvs.excludeCIDRs"
	if out := compare(1, "--ipvs-udp-timeout=1m", "--ipvs-exclude-cidrs=10.96.0.0/12"); !strings.Contains(out, forgets) || !strings.Contains(out, abandons) {
		t.Error(out)
	}
	compareDumps(t, "preflight", before, dump(t, node, showAll))
}
