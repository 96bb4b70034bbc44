package netdev

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// enter moves the calling goroutine, which must not go on after its work, into a namespace.
func enter(ns *labtest.Namespace) error {
	runtime.LockOSThread()
	return unix.Setns(ns.FD(), unix.CLONE_NEWNET)
}
