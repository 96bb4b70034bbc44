package userspace

import "syscall"

// errInUse means that another socket has the port.
const errInUse = syscall.EADDRINUSE
