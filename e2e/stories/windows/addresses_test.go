package windows

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/lab/loopback"
	"github.com/kube-ipvs/kube-ipvs/internal/userspace/shop"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// The machine has the ClusterIP of shop/web, because another program has added it, and not that of shop/other.
const atAddresses = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, nodePort: 30080}, {name: echo, port: 7, protocol: UDP, nodePort: 30007}]
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec:
  clusterIP: 10.96.0.11
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: %d}, {name: echo, port: %[1]d, protocol: UDP}]
endpoints: [{addresses: [192.168.77.5]}]
`

// enterNamespace moves this test into a network namespace of its own, in which the machine has the address 192.168.77.5. It also has
// 10.96.0.10, at its loopback interface.
func enterNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	if err := loopback.Up(); err != nil {
		t.Fatal(err)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer0"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"lo": "10.96.0.10/32", "eth0": "192.168.77.5/24", "peer0": ""} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
		if address == "" {
			continue
		}
		a, err := netlink.ParseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServicesAtAddresses: with --forward-addresses=services, the agent serves a ClusterIP and the node ports at the machine's address,
// over TCP and UDP. Wine cannot add addresses: the second Service has a Problem, and does not affect the first.
func TestServicesAtAddresses(t *testing.T) {
	w := newWine(t)
	w.build(t, "kube-ipvs.exe", "cmd/kube-ipvs", "build")
	enterNamespace(t)
	port := shop.EndpointWithUDP(t, "192.168.77.5", "web")
	var got []string
	for _, p := range w.serve(t, fmt.Sprintf(atAddresses, port)) {
		got = append(got, fmt.Sprintf("%s %s %s: %s", p.Name, p.Protocol, p.Address, p.State))
		if p.Name == "other" && !strings.Contains(p.Reason, "add 10.96.0.11") {
			t.Errorf("the reason of shop/other: %s", p.Reason)
		}
	}
	if text := strings.Join(got, "\n"); text != `other tcp 10.96.0.11:80: Failed
web udp 10.96.0.10:7: Listening
web udp 192.168.77.5:30007: Listening
web tcp 10.96.0.10:80: Listening
web tcp 192.168.77.5:30080: Listening` {
		t.Errorf("ports:\n%s", text)
	}
	for at, network := range map[string]string{"10.96.0.10:80": "tcp", "192.168.77.5:30080": "tcp", "10.96.0.10:7": "udp", "192.168.77.5:30007": "udp"} {
		if answer := shop.Answer(t, view.ForwardedPort{Protocol: network, Address: netip.MustParseAddrPort(at)}); answer != "web" {
			t.Errorf("%s %s answered %q", network, at, answer)
		}
	}
}

// serve starts an agent that serves the manifests at the addresses of their Services, and returns its first table of ports.
func (w wine) serve(t *testing.T, manifests string) []view.ForwardedPort {
	t.Helper()
	dir := filepath.Join(w.work, "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := w.command(t, "kube-ipvs.exe", "run", "--data-plane", "userspace", "--forward-addresses", "services", "--manifests", "/work/manifests", "-o", "json")
	stdout, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	agent.Stderr = &stderr
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		if _ = agent.Wait(); t.Failed() {
			t.Log(stderr.String())
		}
	})
	var document struct{ Items []view.ForwardedPort }
	if err := json.NewDecoder(stdout).Decode(&document); err != nil {
		t.Fatal(err)
	}
	return document.Items
}

// TestCleanup: without addresses of an agent, cleanup removes nothing.
func TestCleanup(t *testing.T) {
	w := newWine(t)
	w.build(t, "kube-ipvs.exe", "cmd/kube-ipvs", "build")
	if out, err := w.command(t, "kube-ipvs.exe", "cleanup").Output(); err != nil || len(out) > 0 {
		t.Errorf("%v, %s", err, out)
	}
}
