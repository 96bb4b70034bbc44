package kernel

import (
	"errors"
	"slices"
	"syscall"
)

// InvalidError is the reason why an object cannot be sent to the kernel.
type InvalidError struct{ Reason error }

func (e InvalidError) Error() string { return e.Reason.Error() }
func (e InvalidError) Unwrap() error { return e.Reason }

// Refused reports whether an operation failed because of its object: the kernel would refuse the same object again, but accept others. A
// refused operation had no effect. All other errors count as errors of the node. Their causes include shared objects (the device, sets,
// rules), permissions, memory, timeouts, a lost answer, or another program that changed the object in the meantime.
func Refused(op Op, err error) bool {
	switch op.KindOf() {
	case KindAddress, KindMember, KindServer, KindDestination:
	default:
		return false
	}
	if errors.As(err, &InvalidError{}) || errors.As(err, &NoSchedulerError{}) || errors.Is(err, ErrFull) {
		return true
	}
	if errors.Is(err, ErrUnavailable) {
		return false
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && !slices.Contains(nodeErrors, errno)
}

// RefusalReason returns the kernel's reason without the object's name. Objects refused for the same reason have equal reasons.
func RefusalReason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "cannot be sent to the kernel"
}

// nodeErrors contains the error numbers that do not depend on the object. All other errors count as the object's fault. The agent detects
// when most objects fail with such an error.
var nodeErrors = []syscall.Errno{
	syscall.EPERM, syscall.EACCES,
	syscall.ENOMEM, syscall.ENOBUFS, syscall.EMSGSIZE, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE,
	syscall.EAGAIN, syscall.EINTR, syscall.EBUSY, syscall.ETIMEDOUT, syscall.ECANCELED,
	syscall.EIO, syscall.EBADF, syscall.EPIPE, syscall.EPROTO, syscall.EBADMSG, syscall.ENOSYS,
	syscall.ENODEV, syscall.ENXIO, syscall.ENETDOWN, syscall.ESRCH,
	syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ENOTCONN, syscall.ESHUTDOWN,
}

// passing are the error numbers for a shortage or an interruption, after which the same operation may succeed.
var passing = []syscall.Errno{
	syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE,
	syscall.EAGAIN, syscall.EINTR, syscall.EBUSY, syscall.ETIMEDOUT, syscall.ECANCELED, syscall.EIO,
}

// Passing reports whether a failed operation may succeed later even if nothing else changes.
func Passing(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(passing, errno)
}
