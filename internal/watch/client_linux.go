package watch

import (
	"errors"
	"syscall"
	"time"
)

const tcpUserTimeout = 18

// limitUnacknowledged returns a dialer's control function that ends a connection whose packets stay unacknowledged for so long.
func limitUnacknowledged(limit time.Duration) func(string, string, syscall.RawConn) error {
	return func(_, _ string, conn syscall.RawConn) error {
		var refused error
		err := conn.Control(func(fd uintptr) {
			refused = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds()))
		})
		return errors.Join(err, refused)
	}
}
