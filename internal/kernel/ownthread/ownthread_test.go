package ownthread

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNotTheMainThread: threads end and are replaced, so one of these calls would get the main thread.
func TestNotTheMainThread(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // otherwise, the main thread may stay busy
	for range 1000 {
		thread := make(chan int)
		Go(func() { thread <- unix.Gettid() })
		if <-thread == unix.Getpid() {
			t.Fatal("the work ran on the main thread")
		}
	}
}

// TestOneThread: the work does not move to another thread, not even while it waits.
func TestOneThread(t *testing.T) {
	moved, wait := make(chan bool), make(chan struct{})
	Go(func() {
		before := unix.Gettid()
		for range 100 {
			<-wait
		}
		moved <- unix.Gettid() != before
	})
	for range 100 {
		wait <- struct{}{}
	}
	if <-moved {
		t.Error("the work moved to another thread")
	}
}
