package freeport

import (
	"fmt"
	"io"
	"net"
	"strconv"
)

// markAs marks a port as this process's. The mark is an abstract Unix socket: only one process of a network namespace can
// bind a name, and the kernel releases it when that process ends.
func markAs(port uint16) (io.Closer, error) {
	return net.Listen("unix", fmt.Sprintf("@kube-ipvs-port-%d", port))
}

// unused reports whether a server could listen on the port on every address.
func unused(port uint16) bool {
	at := ":" + strconv.Itoa(int(port))
	stream, err := net.Listen("tcp", at)
	if err != nil {
		return false
	}
	defer func() { _ = stream.Close() }()
	packets, err := net.ListenPacket("udp", at)
	if err != nil {
		return false
	}
	_ = packets.Close()
	return true
}
