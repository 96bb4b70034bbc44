package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEachRefusedCall makes each system call that the filter refuses. No argument is valid, so that a call does nothing
// if the filter lets it pass.
func TestEachRefusedCall(t *testing.T) {
	const invalid = math.MaxUint64
	type call struct{ number, first uintptr }
	wants := map[call]unix.Errno{
		{unix.SYS_CLONE3, invalid}:                          unix.ENOSYS,
		{unix.SYS_CLONE, newNamespaces | unix.CLONE_THREAD}: unix.EPERM,
		{unix.SYS_SOCKET, unix.AF_VSOCK}:                    unix.EPERM,
		{unix.SYS_SOCKET, invalid}:                          unix.EINVAL, // passes the filter
	}
	for _, number := range refused {
		wants[call{uintptr(number), invalid}] = unix.EPERM
	}
	failed := make(chan error)
	go func() { // this goroutine's thread has the filter, and ends with it
		defer close(failed)
		runtime.LockOSThread()
		if err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), installFilter()); err != nil {
			failed <- err
			return
		}
		for c, want := range wants {
			if _, _, got := unix.RawSyscall6(c.number, c.first, invalid, invalid, invalid, invalid, invalid); got != want {
				failed <- fmt.Errorf("system call %d (%#x, ...): %w, want %w", c.number, c.first, got, want)
			}
		}
	}()
	for err := range failed {
		t.Error(err)
	}
	t.Attr("figure", fmt.Sprintf("%d system calls refused", len(wants)-1))
}
