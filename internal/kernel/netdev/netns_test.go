package netdev

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// enter moves the calling goroutine into a namespace. The goroutine must end after its work.
func enter(ns *labtest.Namespace) error {
	runtime.LockOSThread()
	return unix.Setns(ns.FD(), unix.CLONE_NEWNET)
}
