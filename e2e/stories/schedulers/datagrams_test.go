package schedulers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// together is the number of datagrams in flight at the same time.
const together = 100

// askByUDP sends one datagram from each source. To be fast, it enters the client's namespace once to create many
// sockets, and sends their datagrams together.
func (w *world) askByUDP(f cluster.Family, at string, sources []int) ([]string, error) {
	answered := make([]string, 0, len(sources))
	for len(sources) > 0 {
		n := min(together, len(sources))
		names, err := w.exchange(f, at, sources[:n])
		if err != nil {
			return nil, err
		}
		answered, sources = append(answered, names...), sources[n:]
	}
	return answered, nil
}

func (w *world) exchange(f cluster.Family, at string, sources []int) ([]string, error) {
	conns := make([]*net.UDPConn, 0, len(sources))
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at))
	err := w.client.Do(func() error {
		for _, number := range sources {
			from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(source(f, number), 0))
			c, err := net.DialUDP("udp", from, to)
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, c := range conns {
		if err := ask(c); err != nil {
			return nil, err
		}
	}
	names := make([]string, len(conns))
	lost := 0
	for i, c := range conns {
		retries := 0
		if names[i], retries, err = awaitName(c); err != nil {
			return nil, fmt.Errorf("%s: %w", c.LocalAddr(), err)
		}
		lost += min(retries, 1)
	}
	if lost > together/20 {
		return nil, fmt.Errorf("%d of %d datagrams or their answers were lost", lost, len(conns))
	}
	return names, nil
}

func ask(c *net.UDPConn) error {
	_, err := c.Write([]byte("1\n"))
	return err
}

// A few of a hundred simultaneous datagrams may be lost. They are sent again before IPVS expires the flow.
func awaitName(c *net.UDPConn) (name string, retries int, err error) {
	for retries = range 20 {
		if name, err = readName(c, time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
			return name, retries, err
		}
		if err := ask(c); err != nil {
			return "", retries, err
		}
	}
	return "", retries, err
}

// An answer contains the request's number, the server's name, and the source address that the server saw.
func readName(c *net.UDPConn, within time.Duration) (string, error) {
	buf := make([]byte, 512)
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	n, err := c.Read(buf)
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(buf[:n]))
	if len(fields) != 4 {
		return "", fmt.Errorf("malformed answer: %q", buf[:n])
	}
	return fields[1], nil
}
