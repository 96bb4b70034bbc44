package coexist

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// proxyMark exempts a sidecar's own packets from redirection.
const proxyMark = 1337

const (
	outboundPort = 15001
	inboundPort  = 15006
)

// redirect recreates Istio's rules in a pod: they send all TCP connections from and to the pod through its sidecar.
const redirect = `
for chain in ISTIO_INBOUND ISTIO_IN_REDIRECT ISTIO_OUTPUT ISTIO_REDIRECT; do ipt -t nat -N $chain; done
ipt -t nat -A PREROUTING -p tcp -j ISTIO_INBOUND
ipt -t nat -A OUTPUT -p tcp -j ISTIO_OUTPUT
ipt -t nat -A ISTIO_INBOUND -p tcp --dport 22 -j RETURN
ipt -t nat -A ISTIO_INBOUND -p tcp -j ISTIO_IN_REDIRECT
ipt -t nat -A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
ipt -t nat -A ISTIO_OUTPUT -m mark --mark 1337 -j RETURN
ipt -t nat -A ISTIO_OUTPUT -o lo -j RETURN
ipt -t nat -A ISTIO_OUTPUT -p tcp -j ISTIO_REDIRECT
ipt -t nat -A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
`

// sidecar forwards connections to their original destination.
type sidecar struct {
	pod     *cluster.Pod
	inbound bool

	mu   sync.Mutex
	from []netip.Addr     // sources of connections
	to   []netip.AddrPort // their destinations
}

func startSidecar(t *testing.T, pod *cluster.Pod, f cluster.Family, inbound bool) *sidecar {
	t.Helper()
	s := &sidecar{pod: pod, inbound: inbound}
	port := outboundPort
	if inbound {
		port = inboundPort
	}
	network := fmt.Sprintf("tcp%d", f)
	var listen net.Listener
	err := pod.Do(func() (err error) {
		listen, err = net.Listen(network, fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listen.Close() })
	go func() {
		for {
			conn, err := listen.Accept()
			if err != nil {
				return
			}
			go s.pass(conn.(*net.TCPConn), f)
		}
	}()
	return s
}

func (s *sidecar) pass(conn *net.TCPConn, f cluster.Family) {
	defer conn.Close()
	to, err := originalDestination(conn, f)
	if err != nil {
		return
	}
	s.note(conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), to)
	onward := to
	if s.inbound {
		loopback := map[cluster.Family]string{cluster.V4: "127.0.0.1", cluster.V6: "::1"}[f]
		onward = netip.AddrPortFrom(netip.MustParseAddr(loopback), to.Port())
	}
	server, err := s.dial(onward)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, conn)
		server.Close()
	}()
	_, _ = io.Copy(conn, server)
}

func (s *sidecar) note(from netip.Addr, to netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from, s.to = append(s.from, from), append(s.to, to)
}

func (s *sidecar) dial(to netip.AddrPort) (conn net.Conn, err error) {
	mark := func(_, _ string, raw syscall.RawConn) (failed error) {
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, proxyMark) })
		if err != nil {
			return err
		}
		return failed
	}
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: mark}
	err = s.pod.Do(func() (err error) {
		conn, err = dialer.DialContext(context.Background(), "tcp", to.String())
		return err
	})
	return conn, err
}

func originalDestination(conn *net.TCPConn, f cluster.Family) (to netip.AddrPort, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return to, err
	}
	const originalDst = 80
	failed := raw.Control(func(fd uintptr) {
		if f == cluster.V4 {
			// A sockaddr_in fits into an IPv6 multicast request, which the library can read.
			var request *unix.IPv6Mreq
			if request, err = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDst); err == nil {
				b := request.Multiaddr
				to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4]))
			}
			return
		}
		var info *unix.IPv6MTUInfo // begins with a sockaddr_in6
		if info, err = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, originalDst); err == nil {
			port := info.Addr.Port>>8 | info.Addr.Port<<8
			to = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), port)
		}
	})
	if failed != nil {
		return to, failed
	}
	return to, err
}

func (s *sidecar) seen(t *testing.T) (netip.Addr, netip.AddrPort) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.from) == 0 {
		t.Fatalf("no connection reached the sidecar of %s", s.pod.Name)
	}
	return s.from[len(s.from)-1], s.to[len(s.to)-1]
}

// The client's sidecar sees the ClusterIP and connects to it. The server's sidecar receives the packets that IPVS
// sends to the pod.
func TestSidecars(t *testing.T) {
	w := onWorld(t)
	svc := w.farService()
	for _, f := range both {
		for _, pod := range []*cluster.Pod{w.client, w.far} {
			w.othersRules(t, &cluster.Node{Host: pod.Host, PodCIDR: pod.Node.PodCIDR}, redirect, f)
		}
		outbound, inbound := startSidecar(t, w.client, f, false), startSidecar(t, w.far, f, true)
		if got := w.client.Get(t, cluster.TCP, svc.at(f, http), slowly); got.Server != "web-2" {
			t.Errorf("%s: %s answered", f, got.Server)
		}
		if _, to := outbound.seen(t); to.String() != svc.at(f, http) {
			t.Errorf("the client's sidecar saw the destination %s, want %s", to, svc.at(f, http))
		}
		from, to := inbound.seen(t)
		if from != w.client.Addr(f) || to.String() != w.far.At(f, http.target) {
			t.Errorf("the server's sidecar saw a connection from %s to %s, want from %s to %s", from, to, w.client.Addr(f), w.far.At(f, http.target))
		}
		// An outside client has no sidecar.
		if got := w.outside.Get(t, cluster.TCP, svc.atBalancer(f, http), slowly); got.Server != "web-2" {
			t.Errorf("%s: %s answered", f, got.Server)
		}
		if from, _ := inbound.seen(t); from != w.node1.Addr(f) {
			t.Errorf("the server's sidecar saw %s, want %s", from, w.node1.Addr(f))
		}
	}
}
