package nlbatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Errors of requests that the kernel did not answer.
var (
	ErrNotSent = errors.New("request was not sent")
	// errOutcomeUnknown means that the request was sent, but its answer was lost. It may or may not have taken effect.
	errOutcomeUnknown = errors.New("the request was sent, but its outcome is unknown")
	// ErrDumpInterrupted means that the table changed during the dump.
	ErrDumpInterrupted = errors.New("dump was interrupted by a change")
)

// Error is the kernel's refusal of one request.
type Error struct {
	Errno syscall.Errno
	Text  string
	// Request is the payload of the refused request if the kernel sends it back. ipset sends it back with the number
	// of the rejected line.
	Request []byte
}

func (e *Error) Error() string {
	if e.Text == "" {
		return e.Errno.Error()
	}
	return e.Errno.Error() + ": " + e.Text
}

// Unwrap makes errors.Is(err, unix.ENOENT) work.
func (e *Error) Unwrap() error { return e.Errno }

// decodeError reads the payload of an NLMSG_ERROR or of the end of a dump. The first result is nil for success, or the kernel's refusal.
// The second result reports a malformed message.
func decodeError(h header, payload []byte) (refusal, err error) {
	code, err := Uint32(payload)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if code == 0 {
		return nil, nil
	}
	errno := -int32(code)
	if errno <= 0 {
		return nil, fmt.Errorf("read answer: error number %d", errno)
	}
	e := &Error{Errno: syscall.Errno(errno)}
	rest := payload[4:]
	if h.typ == unix.NLMSG_ERROR {
		rest = e.takeEcho(h, rest)
	}
	if h.flags&unix.NLM_F_ACK_TLVS != 0 {
		e.takeText(rest)
	}
	return e, nil
}

// takeEcho reads the refused request after the error code and returns the remaining bytes. A capped echo is only a header.
func (e *Error) takeEcho(h header, b []byte) []byte {
	if len(b) < unix.SizeofNlMsghdr {
		return nil
	}
	end := unix.SizeofNlMsghdr
	if h.flags&unix.NLM_F_CAPPED == 0 {
		end = min(max(end, int(binary.NativeEndian.Uint32(b))), len(b))
		e.Request = append([]byte(nil), b[unix.SizeofNlMsghdr:end]...)
	}
	return b[min(align(end), len(b)):]
}

func (e *Error) takeText(attrs []byte) {
	const attrMsg = 1 // NLMSGERR_ATTR_MSG
	// Report the error even if its explanation is malformed.
	_ = EachAttr(attrs, func(typ uint16, v []byte) error {
		if typ == attrMsg {
			e.Text = String(v)
		}
		return nil
	})
}
