// Package shop is a Service for tests that run the agent in user space: its manifest, an endpoint, and the ports that the
// agent prints.
package shop

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const patience = time.Minute

const manifest = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {%s}}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports:
  - {name: http, port: 80, nodePort: %d}
  - {name: dns, port: 53, protocol: UDP}
  - {name: sctp, port: 81, protocol: SCTP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{name: http, port: %[3]d}, {name: dns, port: %[3]d, protocol: UDP}]
endpoints: [{addresses: [127.0.0.1]}]
`

// Write writes the manifest of Service shop/web to a directory, in place of an earlier one. The endpoint is a port of
// 127.0.0.1.
func Write(t *testing.T, dir string, nodePort, endpoint uint16, annotations string) {
	t.Helper()
	file := filepath.Join(dir, "shop.yaml")
	if err := os.WriteFile(file+".new", fmt.Appendf(nil, manifest, annotations, nodePort, endpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// Endpoint answers TCP connections at a port of 127.0.0.1 with a line that contains its name.
func Endpoint(t *testing.T, name string) (port uint16) {
	t.Helper()
	return endpointAt(t, "127.0.0.1", name)
}

func endpointAt(t *testing.T, addr, name string) (port uint16) {
	t.Helper()
	port = freeport.Get(t)
	freeport.Serve(t, fmt.Sprintf("%s:%d", addr, port), func(c *net.TCPConn) { _, _ = fmt.Fprintln(c, name) })
	return port
}

// EndpointWithUDP is an endpoint at an address of this machine. It also answers datagrams.
func EndpointWithUDP(t *testing.T, addr, name string) (port uint16) {
	t.Helper()
	port = endpointAt(t, addr, name)
	socket, err := net.ListenPacket("udp", fmt.Sprintf("%s:%d", addr, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		for buffer := make([]byte, 100); ; {
			_, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = socket.WriteTo([]byte(name), from)
		}
	}()
	return port
}

// Ports waits for the ports that the agent prints next, and returns them by name.
func Ports(t *testing.T, documents *json.Decoder) map[string]view.ForwardedPort {
	t.Helper()
	var document struct {
		Kind  string
		Items []view.ForwardedPort
	}
	if err := documents.Decode(&document); err != nil || document.Kind != "ForwardedPortList" {
		t.Fatalf("%q, %v", document.Kind, err)
	}
	ports := map[string]view.ForwardedPort{}
	for _, p := range document.Items {
		ports[p.Port] = p
	}
	return ports
}

// Answer returns the name of the endpoint that answers at a port.
func Answer(t *testing.T, p view.ForwardedPort) string {
	t.Helper()
	c, err := net.DialTimeout(p.Protocol, p.Address.String(), patience)
	if err != nil {
		return "refused"
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if p.Protocol == "udp" {
		_, _ = io.WriteString(c, "hello")
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	if err != nil {
		t.Errorf("%s %s: %v", p.Protocol, p.Address, err)
	}
	return strings.TrimSpace(string(buffer[:n]))
}
