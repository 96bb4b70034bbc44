package main

import (
	"bytes"
	"context"
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

// echo answers TCP connections and UDP datagrams at a port of 127.0.0.1 with a name.
func echo(t *testing.T, name string) uint16 {
	t.Helper()
	port := freeport.Get(t)
	at := fmt.Sprintf("127.0.0.1:%d", port)
	stream, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	datagrams, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = datagrams.Close() })
	go func() {
		for {
			c, err := stream.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
	go func() {
		for buffer := make([]byte, 100); ; {
			_, from, err := datagrams.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteTo([]byte(name), from)
		}
	}()
	return port
}

// answer returns what answers at a port that the agent has printed.
func answer(t *testing.T, p view.ForwardedPort) string {
	t.Helper()
	c, err := net.Dial(p.Protocol, p.Address.String())
	if err != nil {
		return "refused"
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if p.Protocol == "udp" {
		_, _ = io.WriteString(c, "hello")
	}
	buffer := make([]byte, 100)
	n, err := c.Read(buffer)
	if err != nil {
		t.Errorf("%s %s: %v", p.Protocol, p.Address, err)
	}
	return string(buffer[:n])
}

const shopManifest = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
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
ports: [{name: http, port: %[2]d}, {name: dns, port: %[2]d, protocol: UDP}]
endpoints: [{addresses: [127.0.0.1]}]
`

// TestRunUserspace: without privileges, run serves TCP and UDP ports of manifests, prints them, and follows changes.
// When it stops, it closes the ports, and does not wait for an idle connection.
func TestRunUserspace(t *testing.T) {
	dir, nodePort := t.TempDir(), freeport.Get(t)
	write := func(endpoint uint16) {
		file := filepath.Join(dir, "shop.yaml")
		if err := os.WriteFile(file+".new", fmt.Appendf(nil, shopManifest, nodePort, endpoint), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(echo(t, "first"))
	ctx, stop := context.WithCancel(t.Context())
	out, stdout := io.Pipe()
	var log bytes.Buffer
	status := make(chan int, 1)
	go func() {
		status <- execute(ctx, thisHost(), []string{"run", "--data-plane", "userspace", "--manifests", dir, "-o", "json"}, stdout, &log)
		_ = stdout.Close()
	}()
	documents := json.NewDecoder(out)
	next := func() map[string]view.ForwardedPort {
		var document list[view.ForwardedPort]
		if err := documents.Decode(&document); err != nil || document.Kind != "ForwardedPortList" {
			t.Fatalf("%q, %v", document.Kind, err)
		}
		ports := map[string]view.ForwardedPort{}
		for _, p := range document.Items {
			ports[p.Port] = p
		}
		return ports
	}
	ports := next()
	checkShop(t, ports, nodePort)
	idle, err := net.Dial("tcp", ports["http"].Address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()

	second := echo(t, "second")
	write(second)
	for answer(t, ports["http"]) != "second" || answer(t, ports["dns"]) != "second" {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if code := <-status; code != 0 {
		t.Errorf("exit status %d", code)
	}
	if got := answer(t, ports["http"]); got != "refused" {
		t.Errorf("after the end, %s answers", got)
	}
	for _, text := range []string{"data plane userspace", "cannot forward SCTP", "stopped; the ports are closed"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("the log does not contain %q:\n%s", text, log.String())
		}
	}
}

func checkShop(t *testing.T, ports map[string]view.ForwardedPort, nodePort uint16) {
	t.Helper()
	if p := ports["http"]; p.Address.Port() != nodePort || p.State != view.PortListening || answer(t, p) != "first" {
		t.Errorf("http: %+v", p)
	}
	if p := ports["dns"]; p.Serves != "10.96.0.10:53" || p.State != view.PortListening || answer(t, p) != "first" {
		t.Errorf("dns: %+v", p)
	}
	if p := ports["sctp"]; p.State != view.PortFailed {
		t.Errorf("sctp: %+v", p)
	}
}
