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

// running is an agent in user space whose output the test reads.
type running struct {
	stop      context.CancelFunc
	out       io.Reader
	documents *json.Decoder
	log       bytes.Buffer // complete after the end
	status    chan int
}

func runUserspace(t *testing.T, dir string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, stdout := io.Pipe()
	r := &running{stop: stop, out: out, documents: json.NewDecoder(out), status: make(chan int, 1)}
	go func() {
		r.status <- execute(ctx, thisHost(), []string{"run", "--data-plane", "userspace", "--manifests", dir, "-o", "json"}, stdout, &r.log)
		_ = stdout.Close()
	}()
	return r
}

// next returns the ports that the agent prints next, by name.
func (r *running) next(t *testing.T) map[string]view.ForwardedPort {
	t.Helper()
	var document list[view.ForwardedPort]
	if err := r.documents.Decode(&document); err != nil || document.Kind != "ForwardedPortList" {
		t.Fatalf("%q, %v", document.Kind, err)
	}
	ports := map[string]view.ForwardedPort{}
	for _, p := range document.Items {
		ports[p.Port] = p
	}
	return ports
}

// end stops the agent.
func (r *running) end(t *testing.T) {
	t.Helper()
	r.stop()
	go func() { _, _ = io.Copy(io.Discard, r.out) }()
	if code := <-r.status; code != 0 {
		t.Errorf("exit status %d", code)
	}
}

func (r *running) logged(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.log.String(), text) {
			t.Errorf("the log does not contain %q:\n%s", text, r.log.String())
		}
	}
}

// writeShop replaces the manifest of the shop.
func writeShop(t *testing.T, dir, manifest string) {
	t.Helper()
	file := filepath.Join(dir, "shop.yaml")
	if err := os.WriteFile(file+".new", []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// TestRunUserspace: without privileges, run serves TCP and UDP ports of manifests, prints them, and follows changes.
// When it stops, it closes the ports, and does not wait for an idle connection.
func TestRunUserspace(t *testing.T) {
	dir, nodePort := t.TempDir(), freeport.Get(t)
	writeShop(t, dir, fmt.Sprintf(shopManifest, nodePort, echo(t, "first")))
	agent := runUserspace(t, dir)
	ports := agent.next(t)
	checkShop(t, ports, nodePort)
	idle, err := net.Dial("tcp", ports["http"].Address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()

	writeShop(t, dir, fmt.Sprintf(shopManifest, nodePort, echo(t, "second")))
	for answer(t, ports["http"]) != "second" || answer(t, ports["dns"]) != "second" {
		time.Sleep(10 * time.Millisecond)
	}
	agent.end(t)
	if got := answer(t, ports["http"]); got != "refused" {
		t.Errorf("after the end, %s answers", got)
	}
	agent.logged(t, "data plane userspace", "cannot forward SCTP", "stopped; the ports are closed")
}

// TestRunWithProxyProtocol: the annotation of a manifest decides whether connections to an endpoint begin with a header,
// and the printed port says so. A value that is not valid is a Problem, and the port works without the header.
func TestRunWithProxyProtocol(t *testing.T) {
	mirror, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mirror.Close() }()
	go func() {
		for {
			c, err := mirror.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	dir, nodePort := t.TempDir(), freeport.Get(t)
	write := func(value string) {
		manifest := strings.Replace(shopManifest, "metadata: {", `metadata: {annotations: {kube-ipvs.io/proxy-protocol: "`+value+`"}, `, 1)
		writeShop(t, dir, fmt.Sprintf(manifest, nodePort, mirror.Addr().(*net.TCPAddr).Port))
	}
	write("v1")
	agent := runUserspace(t, dir)
	ports := agent.next(t)
	if ports["http"].ProxyProtocol != 1 || ports["dns"].ProxyProtocol != 0 {
		t.Errorf("ports %+v", ports)
	}
	received := func() (text, client string) {
		c, err := net.Dial("tcp", ports["http"].Address.String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, "GET\n")
		_ = c.(*net.TCPConn).CloseWrite()
		all, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		_ = c.Close()
		return string(all), strings.TrimPrefix(c.LocalAddr().String(), "127.0.0.1:")
	}
	if got, client := received(); got != fmt.Sprintf("PROXY TCP4 127.0.0.1 127.0.0.1 %s %d\r\nGET\n", client, nodePort) {
		t.Errorf("the endpoint received %q from port %s", got, client)
	}
	write("v9")
	if p := agent.next(t)["http"]; p.State != view.PortListening || p.ProxyProtocol != 0 {
		t.Errorf("with an invalid value: %+v", p)
	}
	if got, _ := received(); got != "GET\n" {
		t.Errorf("with an invalid value, the endpoint received %q", got)
	}
	agent.end(t)
	agent.logged(t, `Service shop/web: metadata.annotations[kube-ipvs.io/proxy-protocol] "v1": the header is sent only over TCP`,
		`Service shop/web: metadata.annotations[kube-ipvs.io/proxy-protocol] "v9": must be v1, v2 or none`)
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
