package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/userspace/shop"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

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

// TestRunUserspace: without privileges, run serves TCP and UDP ports of manifests, prints them, and follows changes.
// When it stops, it closes the ports, and does not wait for an idle connection.
func TestRunUserspace(t *testing.T) {
	dir, nodePort := t.TempDir(), freeport.Get(t)
	shop.Write(t, dir, nodePort, shop.EndpointWithUDP(t, "127.0.0.1", "first"), "")
	agent := runUserspace(t, dir)
	ports := shop.Ports(t, agent.documents)
	checkShop(t, ports, nodePort)
	idle, err := net.Dial("tcp", ports["http"].Address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()

	shop.Write(t, dir, nodePort, shop.EndpointWithUDP(t, "127.0.0.1", "second"), "")
	for shop.Answer(t, ports["http"]) != "second" || shop.Answer(t, ports["dns"]) != "second" {
		time.Sleep(10 * time.Millisecond)
	}
	agent.end(t)
	if got := shop.Answer(t, ports["http"]); got != "refused" {
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
		shop.Write(t, dir, nodePort, uint16(mirror.Addr().(*net.TCPAddr).Port), "kube-ipvs.io/proxy-protocol: "+value)
	}
	write("v1")
	agent := runUserspace(t, dir)
	ports := shop.Ports(t, agent.documents)
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
	if p := shop.Ports(t, agent.documents)["http"]; p.State != view.PortListening || p.ProxyProtocol != 0 {
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
	if p := ports["http"]; p.Address.Port() != nodePort || p.State != view.PortListening || shop.Answer(t, p) != "first" {
		t.Errorf("http: %+v", p)
	}
	if p := ports["dns"]; p.Serves != "10.96.0.10:53" || p.State != view.PortListening || shop.Answer(t, p) != "first" {
		t.Errorf("dns: %+v", p)
	}
	if p, listed := ports["sctp"]; listed { // its Problem is in the log
		t.Errorf("sctp: %+v", p)
	}
}
