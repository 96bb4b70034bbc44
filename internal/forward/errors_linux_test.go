package forward

import "syscall"

// errClosedPort is what a UDP socket returns after a datagram to a port that is closed.
const errClosedPort = syscall.ECONNREFUSED
