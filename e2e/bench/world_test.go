package bench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// world contains a node with a client pod, and a second node whose pod has the addresses of all endpoints.
type world struct {
	node       *cluster.Node
	client     *cluster.Pod
	api        *watchtest.Server
	kubeconfig string
	// endpoint is the socket that receives the datagrams.
	endpoint *net.UDPConn
}

func newWorld(t *testing.T, services int) *world {
	t.Helper()
	// Each flow leaves a conntrack entry for a while.
	if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_max", []byte("1000000"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	c := cluster.New(t, cluster.Config{Name: "bench", Nodes: 2, Clients: -1, Families: cluster.IPv4Only})
	w := &world{node: c.Nodes[0], client: c.Nodes[0].Pod(t, "client"), api: watchtest.New(t)}
	backend := c.Nodes[1].Pod(t, "backend")
	backend.MustRun(t, "ip", "route", "add", "local", endpointRange.String(), "dev", "lo")
	c.Nodes[1].MustRun(t, "ip", "route", "add", endpointRange.String(), "via", backend.V4.String(), "dev", backend.Veth, "onlink")
	w.node.MustRun(t, "ip", "route", "add", endpointRange.String(), "via", c.Nodes[1].V4.String())
	// Connections fail immediately until a Service is served.
	w.node.MustRun(t, "ip", "route", "add", "unreachable", "10.96.0.0/13")
	respond(t, listen(t, backend.Host, netip.AddrPortFrom(netip.IPv4Unspecified(), endpointPort)))
	w.endpoint = sink(t, backend.Host)

	at := netip.AddrPortFrom(c.Router.V4, 6443)
	w.api.Put(objects(services, netip.AddrPortFrom(w.node.V4, 0), at)...)
	server := w.api.StartAt(listen(t, c.Router, at))
	w.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(w.kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "it",
"contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}], "users": [{"name": "it", "user": {}}],
"clusters": [{"name": "it", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}]}`, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

func listen(t *testing.T, host *cluster.Host, at netip.AddrPort) (l net.Listener) {
	t.Helper()
	err := host.Do(func() (err error) {
		l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// respond sends each client the address that it reached, and then echoes its data.
func respond(t *testing.T, l net.Listener) {
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // the client has disconnected
			}
			go func() {
				defer conn.Close()
				local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().As4()
				if _, err := conn.Write(local[:]); err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
		}
	}()
}

// sink never reads the datagrams that it receives, so that only sending is measured.
func sink(t *testing.T, host *cluster.Host) (conn *net.UDPConn) {
	t.Helper()
	err := host.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(datagramEndpoint, endpointPort)))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn.SetReadBuffer(16 << 10) // full soon after the start of a measurement
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
