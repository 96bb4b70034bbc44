package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
)

const (
	// echoTries is the number of echo requests of one size. echoPatience is the time to wait for each reply.
	echoTries    = 2
	echoPatience = 500 * time.Millisecond
	echoHeader   = 8
)

// measure sends a small and a large echo request to an endpoint on another node. If the large one gets no reply, but TCP
// sends only smaller packets to the endpoint, measure tries again with the size of the largest TCP packets.
func measure(ctx context.Context, e *doctor.Echo) {
	p, err := openPinger(ctx, e.Address.Addr())
	if err == nil {
		defer p.conn.Close()
		err = p.measure(ctx, e)
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) { // the full error would also name the address
		err = op.Err
	}
	if err != nil {
		e.Failure = err.Error()
	}
}

func (p *pinger) measure(ctx context.Context, e *doctor.Echo) (err error) {
	if e.Size, err = p.mtu(); err != nil {
		return err
	}
	if e.Most > 0 {
		e.Size = min(e.Size, e.Most)
	}
	if e.Small, err = p.ping(doctor.SmallEcho); err != nil || e.Small != doctor.Answered {
		return err
	}
	if e.Large, err = p.ping(e.Size); err != nil || e.Large != doctor.Lost || !e.TCP {
		return err
	}
	if size := largestOfTCP(ctx, e.Address); size > 0 && size < e.Size {
		e.Size = size
		e.Large, err = p.ping(size)
	}
	return err
}

// pinger sends echo requests to one address. The kernel never fragments them, and ignores the path MTU that it has learned.
type pinger struct {
	conn       net.Conn
	v6         bool
	id, rounds uint16
}

func openPinger(ctx context.Context, to netip.Addr) (*pinger, error) {
	p := &pinger{v6: to.Is6(), id: uint16(os.Getpid())}
	network := "ip4:icmp"
	if p.v6 {
		network = "ip6:ipv6-icmp"
	}
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return control(raw, func(fd int) error {
			if p.v6 {
				return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
					unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
			}
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE),
				unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1))
		})
	}}
	var err error
	p.conn, err = dialer.DialContext(ctx, network, to.String())
	return p, err
}

func control(raw syscall.RawConn, do func(fd int) error) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}

// mtu returns the MTU of the route. It is smaller than the interface's MTU if the kernel has learned a path MTU.
func (p *pinger) mtu() (mtu int, err error) {
	raw, err := p.conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	err = control(raw, func(fd int) (err error) {
		if p.v6 {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU)
		} else {
			mtu, err = unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
		}
		return err
	})
	return mtu, err
}

// ping sends up to echoTries echo requests, until it gets a reply.
func (p *pinger) ping(size int) (doctor.Reply, error) {
	p.rounds++
	for range echoTries {
		_, err := p.conn.Write(p.request(size))
		if err == nil {
			err = p.await()
		}
		switch {
		case err == nil:
			return doctor.Answered, nil
		case errors.Is(err, unix.EMSGSIZE):
			return doctor.TooBig, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return doctor.Unsent, err
		}
	}
	return doctor.Lost, nil
}

// Message types of ICMP and ICMPv6.
const (
	echoRequest, echoReply   = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// request returns an echo request for an IP packet of the given size. For ICMPv6, the kernel computes the checksum.
func (p *pinger) request(size int) []byte {
	if p.v6 {
		b := make([]byte, max(size-40, echoHeader))
		b[0] = echoRequest6
		return p.identify(b)
	}
	b := p.identify(make([]byte, max(size-20, echoHeader)))
	b[0] = echoRequest
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

func (p *pinger) identify(b []byte) []byte {
	binary.BigEndian.PutUint16(b[4:], p.id)
	binary.BigEndian.PutUint16(b[6:], p.rounds)
	return b
}

// checksum returns the checksum of an ICMP message. If the length of the message is odd, its last byte must be zero.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// await reads packets until the reply to the current request arrives.
func (p *pinger) await() error {
	if err := p.conn.SetReadDeadline(time.Now().Add(echoPatience)); err != nil {
		return err
	}
	b := make([]byte, 1<<16)
	for {
		n, err := p.conn.Read(b)
		if err != nil {
			return err
		}
		if p.answers(b[:n]) {
			return nil
		}
	}
}

// answers reports whether a packet answers the current request. IPv4 packets begin with the IP header.
func (p *pinger) answers(b []byte) bool {
	want := byte(echoReply6)
	if !p.v6 {
		want = echoReply
		if len(b) == 0 || len(b) < int(b[0]&0xf)*4 {
			return false
		}
		b = b[b[0]&0xf*4:]
	}
	return len(b) >= echoHeader && b[0] == want && binary.BigEndian.Uint16(b[4:]) == p.id && binary.BigEndian.Uint16(b[6:]) == p.rounds
}

// largestOfTCP returns the size of the largest packets that TCP sends to an endpoint, or 0 if the size is unknown. The endpoint announces a limit.
func largestOfTCP(ctx context.Context, to netip.AddrPort) (size int) {
	dialer := net.Dialer{Timeout: connectPatience}
	c, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = control(raw, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return err
		}
		const hasTimestamps, timestamps, tcpHeader = 1, 12, 20
		size = int(info.Snd_mss) + tcpHeader + 20
		if to.Addr().Is6() {
			size += 20
		}
		if info.Options&hasTimestamps != 0 {
			size += timestamps
		}
		return nil
	})
	return size
}
