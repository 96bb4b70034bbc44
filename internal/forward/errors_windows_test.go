package forward

import "os"

// errClosedPort is what a UDP socket returns after a datagram to a port that is closed: Go's standard library turns such errors off.
var errClosedPort = os.ErrDeadlineExceeded
