package coexist

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// rivalConfig makes kube-proxy write its rules as soon as a Service changes.
const rivalConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {minSyncPeriod: 1s}
ipvs: {minSyncPeriod: 1s}
`

// changingService is served only by kube-proxy, because the agent reads manifests.
const changingService = `
apiVersion: v1
kind: Service
metadata: {name: changing, namespace: default}
spec: {type: ClusterIP, clusterIP: 10.96.9.9, clusterIPs: [10.96.9.9], ports: [{protocol: TCP, port: %d, targetPort: 80}]}
`

// kube-proxy is still running and writes to the same chains as the agent. The agent reports each chain that
// changes, and the program that changes it.
func TestForgottenKubeProxy(t *testing.T) {
	w := onWorld(t)
	node := w.node3
	proxy := kubeProxy(t)
	api, kubeconfig := w.controlPlane(t)
	for _, mode := range []string{"iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			t.Cleanup(func() { w.wipe(t, node) })
			config := filepath.Join(t.TempDir(), "kube-proxy.yaml")
			if err := os.WriteFile(config, fmt.Appendf(nil, rivalConfig, mode, node.Name, podCIDRs, kubeconfig), 0o600); err != nil {
				t.Fatal(err)
			}
			theirs := node.MustStart(t, proxy, "--config", config, "-v=2")
			t.Cleanup(theirs.Kill)
			cluster.Eventually(t, proxyPatience, "kube-proxy's metrics server reports its mode", func() error {
				page, err := node.HTTPGet("http://127.0.0.1:10249/proxyMode")
				if err == nil && page.Body != mode {
					err = fmt.Errorf("it answers %q", page.Body)
				}
				return err
			})
			socket := filepath.Join(t.TempDir(), "agent.sock")
			w.startAgent(t, node, "--ipvs-sync-period", period.String(), "--status-socket", socket)
			w.agents[node].AwaitLog(t, patience, "IPv4 table nat: chain KUBE-SERVICES was changed by kube-proxy")
			want := []string{
				"IPv4 chain KUBE-SERVICES of table nat: kube-proxy has kept changing this since ",
				`--metrics-bind-address "127.0.0.1:10249": the agent cannot serve metrics there: kube-proxy in ` + mode + " mode",
				`--healthz-bind-address "0.0.0.0:10256": the agent cannot serve health there: kube-proxy or another kube-ipvs uses this port`,
			}
			port := 8000
			cluster.Eventually(t, patience, "the agent's status names kube-proxy", func() error {
				if port++; api.Apply(t.Context(), fmt.Sprintf(changingService, port)) != nil {
					return errors.New("cannot change the Service")
				}
				out, _ := node.Run(cluster.AgentBinary(t), "status", "--status-socket", socket)
				for _, text := range want {
					if !strings.Contains(out, text) {
						return fmt.Errorf("no %q in:\n%s", text, out)
					}
				}
				return nil
			})
			end(t, theirs)
			w.stopAgent(t, node)
		})
	}
}
