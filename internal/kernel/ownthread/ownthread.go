// Package ownthread runs work on an operating system thread of its own, for example in another network namespace.
//
// May import: x/sys/unix.
package ownthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Go runs work on a thread that ends with it. It is never the process's main thread: that thread cannot end, and /proc/self
// shows its namespace and priority.
func Go(work func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			work() // never unlocked, so that the thread ends
			return
		}
		ended := make(chan struct{})
		Go(func() { defer close(ended); work() }) // on another thread, because this one is locked until then
		<-ended
		runtime.UnlockOSThread()
	}()
}
