package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestSenderAndSilentServer(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	pod := c.Nodes[0].Pod(t, "collector")
	server := pod.Serve(t, UDP, 514, Silent())
	for _, f := range c.FamilyList() {
		c.Clients[0].MustTimeout(t, UDP, pod.At(f, 514), Within(100*time.Millisecond))
		before := server.Requests()
		sender := c.Clients[0].StartSender(t, pod.At(f, 514), 10*time.Millisecond)
		Eventually(t, 10*time.Second, "datagrams arrive", func() error {
			if n := server.Requests() - before; n < 3 {
				return fmt.Errorf("%d so far", n)
			}
			return nil
		})
		sender.Stop()
		if server.Sources()[c.Clients[0].Addr(f)] == 0 {
			t.Errorf("%s: the server saw %v", f, server.Sources())
		}
	}
}

// No two sockets may send from the same port to the same address, although the kernel chooses ports at random.
func TestDatagramsOfNewClients(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	pod, client := c.Nodes[0].Pod(t, "web"), c.Clients[0]
	pod.Serve(t, UDP, 8080)
	client.MustRun(t, "sysctl", "-q", "net.ipv4.ip_local_port_range=40000 40049")
	for _, f := range c.FamilyList() {
		seen := map[uint16]bool{}
		for range 40 {
			port := client.Get(t, UDP, pod.At(f, 8080)).Port
			if seen[port] {
				t.Errorf("%s: port %d was used twice", f, port)
			}
			seen[port] = true
		}
	}
}

func TestLargeRequests(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	pod := c.Nodes[0].Pod(t, "web")
	pod.Serve(t, TCP, 8080)
	pod.Serve(t, UDP, 8080)
	for _, f := range c.FamilyList() {
		c.Clients[0].GetLarge(t, TCP, pod.At(f, 8080), 200_000)
		c.Clients[0].GetLarge(t, UDP, pod.At(f, 8080), 8_000)
	}
}

func TestHTTPGet(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	var listener net.Listener
	err := c.Nodes[0].Do(func() (err error) {
		listener, err = net.Listen("tcp", ":10256")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Weight", "3")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("no"))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	for _, f := range c.FamilyList() {
		page, err := c.Clients[0].HTTPGet("http://" + c.Nodes[0].At(f, 10256) + "/healthz")
		if err != nil || page.Status != 503 || page.Body != "no" || page.Header.Get("X-Weight") != "3" {
			t.Errorf("%s: %+v, %v", f, page, err)
		}
	}
	if err := server.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	<-done
}

// A receiver without the connection answers a stray segment with a reset.
func TestStrayTCPArrives(t *testing.T) {
	labtest.NeedRoot(t)
	c := New(t, Config{Nodes: 1})
	pod, client := c.Nodes[0].Pod(t, "web"), c.Clients[0]
	for _, f := range c.FamilyList() {
		before := client.MustRun(t, "cat", "/proc/net/snmp")
		from, to := netip.AddrPortFrom(pod.Addr(f), 8080), netip.AddrPortFrom(client.Addr(f), 40000)
		if err := pod.SendStrayTCP(from, to, 3); err != nil {
			t.Fatal(err)
		}
		Eventually(t, 5*time.Second, fmt.Sprintf("%s: the client sends resets", f), func() error {
			if after := client.MustRun(t, "cat", "/proc/net/snmp"); after == before {
				return errors.New("the TCP counters have not changed")
			}
			return nil
		})
	}
}
