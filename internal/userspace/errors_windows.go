package userspace

import "golang.org/x/sys/windows"

// errInUse means that another socket has the port. On Windows, syscall.EADDRINUSE is not an error of the system.
const errInUse = windows.WSAEADDRINUSE
