package nlbatch

import (
	"encoding/binary"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// fakeSocket simulates a kernel whose answers the test defines. Without an answer function, it never responds.
type fakeSocket struct {
	answer  func(header, []byte) [][]byte
	inbox   [][]byte
	sent    []int // requests per send
	sendErr error
	readErr error // returned once the inbox is empty
	room    int
	closed  bool
}

func (s *fakeSocket) send(b []byte) error {
	if s.sendErr != nil {
		return s.sendErr
	}
	count := 0
	err := eachMessage(b, func(h header, payload []byte) error {
		count++
		if s.answer == nil {
			return nil
		}
		for _, answer := range s.answer(h, payload) {
			if h.flags&unix.NLM_F_ACK != 0 || !succeeded(answer) { // the kernel reports every failure
				s.inbox = append(s.inbox, answer)
			}
		}
		return nil
	})
	s.sent = append(s.sent, count)
	return err
}

func (s *fakeSocket) receive(b []byte, deadline func() time.Time) (int, error) {
	if len(s.inbox) == 0 {
		if s.readErr != nil {
			return 0, s.readErr
		}
		time.Sleep(time.Until(deadline()))
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(b, s.inbox[0])
	s.inbox = s.inbox[1:]
	return n, nil
}

func (s *fakeSocket) budget() int {
	if s.room == 0 {
		return 1 << 20
	}
	return s.room
}

func (s *fakeSocket) close() error {
	s.closed = true
	return nil
}

func fakeConn(sockets ...*fakeSocket) *Conn {
	return &Conn{dial: func() (socket, error) {
		if len(sockets) == 0 {
			return nil, unix.ENFILE
		}
		s := sockets[0]
		sockets = sockets[1:]
		return s, nil
	}}
}

func datagram(typ, flags uint16, seq uint32, payload []byte) []byte {
	n := binary.NativeEndian
	b := n.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(payload)))
	b = n.AppendUint16(b, typ)
	b = n.AppendUint16(b, flags)
	b = n.AppendUint32(b, seq)
	b = append(n.AppendUint32(b, 0), payload...)
	return appendPadding(b, len(payload))
}

func succeeded(answer []byte) bool {
	const typ, code = 4, unix.SizeofNlMsghdr
	n := binary.NativeEndian
	return n.Uint16(answer[typ:]) == unix.NLMSG_ERROR && len(answer) > code+4 && n.Uint32(answer[code:]) == 0
}

// ack is an acknowledgement, or a refusal with an explanation, as the kernel sends it with NETLINK_CAP_ACK.
func ack(h header, errno unix.Errno, text string) []byte {
	payload := binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
	payload = append(payload, make([]byte, unix.SizeofNlMsghdr)...)
	flags := uint16(unix.NLM_F_CAPPED)
	if text != "" {
		flags |= unix.NLM_F_ACK_TLVS
		payload = AppendString(payload, 1, text)
	}
	return datagram(unix.NLMSG_ERROR, flags, h.seq, payload)
}

// ackAll acknowledges all requests except those with these numbers, counted from 0 over the socket's lifetime.
func ackAll(errno unix.Errno, refused ...int) func(header, []byte) [][]byte {
	n := -1
	return func(h header, _ []byte) [][]byte {
		n++
		if slices.Contains(refused, n) {
			return [][]byte{ack(h, errno, "number is unlucky")}
		}
		return [][]byte{ack(h, 0, "")}
	}
}

func requests(n int) []Request {
	reqs := make([]Request, n)
	for i := range reqs {
		reqs[i] = Request{Type: 0x20, Payload: []byte{byte(i), 1, 2}}
	}
	return reqs
}
