package userspace

import "syscall"

const errRefused = syscall.ECONNREFUSED
