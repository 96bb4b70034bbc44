package forward

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// source is a connection whose data is copied. The kernel moves the data through a pipe (splice), as it does for io.Copy, which does
// not tell how much it has copied before the connection ends.
type source struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	// splice is unix.Splice, except in tests.
	splice func(from int, fromOffset *int64, to int, toOffset *int64, most int, flags int) (int64, error)
	// fill and drain are fillPipe and drainPipe; a method value is allocated.
	fill, drain func(fd uintptr) (done bool)
	pipe        *pipe
	data        []byte // of copyPiece
	left        int64  // in the pipe
	err         error
}

func newSource(conn *net.TCPConn) *source {
	raw, _ := conn.SyscallConn() // it fails only for the zero value
	s := &source{conn: conn, raw: raw, splice: unix.Splice}
	s.fill, s.drain = s.fillPipe, s.drainPipe
	return s
}

// most is how much data a pipe takes at once: the default size of a pipe. Data in a pipe does not count against the limits of sockets, so a client
// that does not read would hold more memory with a larger one.
const most = 64 << 10

// piece is how much data is copied at once if no pipe can be used.
const piece = 32 << 10

// copyNext waits for data, and copies what has arrived. It returns 0 at the end of the connection. It calls count before the other side can
// receive the data.
func (s *source) copyNext(to *source, count func(from *source, bytes int64)) (copied int64, err error) {
	if err := s.raw.Read(s.fill); err != nil {
		return 0, err
	}
	if s.pipe == nil || errors.Is(s.err, unix.EINVAL) || errors.Is(s.err, unix.ENOSYS) {
		s.pipe.release(0)
		return s.copyPiece(to, count)
	}
	defer func() { s.pipe.release(s.left) }()
	if s.err != nil || s.left == 0 {
		return 0, s.err
	}
	count(s, s.left)
	for copied = s.left; s.left > 0; {
		err := to.raw.Write(s.drain) // sets s.err
		if err = errors.Join(err, s.err); err != nil {
			return copied, err
		}
	}
	return copied, nil
}

// copyPiece is copyNext through the agent's memory, for a kernel without splice and while the agent has too few file descriptors for a pipe.
func (s *source) copyPiece(to *source, count func(from *source, bytes int64)) (copied int64, err error) {
	if s.data == nil {
		s.data = make([]byte, piece)
	}
	n, err := s.conn.Read(s.data)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if n > 0 {
		count(s, int64(n))
		_, failed := to.conn.Write(s.data[:n])
		err = errors.Join(err, failed)
	}
	return int64(n), err
}

func (s *source) fillPipe(fd uintptr) (done bool) {
	s.left = 0
	if s.pipe, s.err = takePipe(); s.err != nil {
		return true
	}
	s.left, s.err = s.move(int(fd), s.pipe.in, most)
	if errors.Is(s.err, unix.EAGAIN) { // the pipe is empty, so the connection has no data
		s.pipe.release(0)
		return false
	}
	return true
}

func (s *source) drainPipe(fd uintptr) (done bool) {
	n, err := s.move(s.pipe.out, int(fd), int(s.left))
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	s.left, s.err = s.left-n, err
	return true
}

func (s *source) move(from, to, most int) (int64, error) {
	for {
		n, err := s.splice(from, nil, to, nil, most, unix.SPLICE_F_NONBLOCK)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// fails waits at the end of the connection's data until the connection is closed, and reports whether it failed: the other end may be gone.
func (s *source) fails() bool {
	return s.raw.Read(func(fd uintptr) bool {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		return err != nil || info.State == unix.BPF_TCP_CLOSE
	}) == nil
}

// segments returns how many packets a connection has received and sent. It returns false if the socket is closed.
func (s *source) segments() (in, out uint32, ok bool) {
	var info *unix.TCPInfo
	var err error
	closed := s.raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if closed != nil || err != nil {
		return 0, 0, false
	}
	return info.Segs_in, info.Segs_out, true
}
