package forward

import (
	"net"

	"golang.org/x/sys/unix"
)

// carried returns what an open connection has carried: packets between client and agent, and the data that was received
// from either end. The kernel counts, because it also copies the data. It returns false if a socket is closed.
func carried(client, server *net.TCPConn) (Traffic, bool) {
	of, ok := infoOf(client)
	from, alsoOK := infoOf(server)
	if !ok || !alsoOK {
		return Traffic{}, false
	}
	return Traffic{
		PacketsIn: uint64(of.Segs_in), PacketsOut: uint64(of.Segs_out), BytesIn: of.Bytes_received, BytesOut: from.Bytes_received,
	}, true
}

func infoOf(c *net.TCPConn) (info *unix.TCPInfo, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, false
	}
	closed := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	return info, closed == nil && err == nil
}
