package forward

import "syscall"

const errRefused = syscall.ECONNREFUSED
