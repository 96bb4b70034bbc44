package freeport

import (
	"errors"
	"io"
	"net"
	"strconv"
)

// markAs marks a port as this process's. On Windows, other processes do not see the mark: tests run one after the other there.
func markAs(port uint16) (io.Closer, error) {
	if reserved[port] != nil {
		return nil, errors.New("reserved")
	}
	return io.NopCloser(nil), nil
}

// unused reports whether a server could listen on the port, over TCP: Go programs cannot open UDP sockets under Wine.
func unused(port uint16) bool {
	stream, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(int(port)))
	if err != nil {
		return false
	}
	_ = stream.Close()
	return true
}
