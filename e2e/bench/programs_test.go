package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// clusterCIDR contains the client's address, but not the endpoints' addresses. This does not affect a pod's packets.
const clusterCIDR = "10.244.0.0/16"

type program struct {
	name, version string
	command       []string
	// files are loaded into the page cache before the start. The command itself may be a script that runs one of
	// them.
	files []string
}

// ways contains the flags of kube-ipvs by the name of their case.
var ways = map[string]string{"kube-ipvs": "--data-plane=ipvs", "kube-ipvs-nftables": "--data-plane=nftables", "kube-ipvs-routes": "--addresses=routes"}

// programOf returns a program by its name in the Makefile: kube-ipvs with a flag, kube-router, or a mode of kube-proxy.
func programOf(t *testing.T, name, kubeconfig string) program {
	t.Helper()
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	if flag, ours := ways[name]; ours {
		binary := filepath.Join(root, "bin", "kube-ipvs")
		return program{strings.Replace(name, "kube-ipvs-", "kube-ipvs ", 1), versionOf(t, binary), []string{
			cluster.AgentBinary(t), "run", "--kubeconfig", kubeconfig, "--hostname-override", nodeName,
			"--cluster-cidr", clusterCIDR, "--conntrack-max-per-core", "0", flag,
		}, []string{binary}}
	}
	if name == upstream.KubeRouter {
		path, version := built(t, root, upstream.KubeRouter)
		return program{name, version, []string{
			path, "--kubeconfig", kubeconfig, "--hostname-override", nodeName, "--run-service-proxy=true", "--run-firewall=false", "--run-router=false",
		}, nil}
	}
	path, version := built(t, root, upstream.KubeProxy)
	config := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeProxyConfig, name, nodeName, clusterCIDR, kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return program{"kube-proxy " + name, version, []string{path, "--config", config}, nil}
}

// built returns the path and the version of another project's program.
func built(t *testing.T, root, name string) (path, version string) {
	t.Helper()
	path, err := upstream.Path(root, name)
	if err != nil {
		t.Fatal(err)
	}
	version, err = upstream.Version(root, name)
	if err != nil {
		t.Fatal(err)
	}
	return path, strings.TrimPrefix(version, "v")
}

// kubeProxyConfig contains defaults, except for conntrack limits, which only the initial network namespace may set.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: %s
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// versionOf returns the version that kube-ipvs prints as its second word.
func versionOf(t *testing.T, binary string) string {
	t.Helper()
	out, err := exec.Command(binary, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(out))
	if len(words) < 2 {
		t.Fatalf("%s printed the version %q", binary, out)
	}
	return strings.TrimPrefix(words[1], "v")
}
