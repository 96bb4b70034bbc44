package freeport

import (
	"net"
	"net/netip"
	"testing"
)

// Serve calls a function with each TCP connection to an address, and then closes the connection. With port 0, the kernel
// chooses the port. The socket is closed at the end of the test.
func Serve(t testing.TB, address string, each func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	socket, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		for {
			c, err := socket.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				each(c.(*net.TCPConn))
			}()
		}
	}()
	return socket.Addr().(*net.TCPAddr).AddrPort()
}
