package nlbatch

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Limits of one send.
const (
	maxRequests  = 256
	maxSendBytes = 96 << 10 // less than half of the default send buffer
	// The costs are an answer's share of the receive buffer. The kernel charges the memory that it allocates for an answer: less than 1 KiB
	// for an acknowledgement, and a page or two for other answers.
	ackCost    = 2 << 10
	answerCost = 18 << 10
)

type header struct {
	length     uint32
	typ, flags uint16
	seq        uint32
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func (r Request) wireSize() int { return align(unix.SizeofNlMsghdr + len(r.Payload)) }

func appendRequest(b []byte, r Request, flags uint16, seq uint32) []byte {
	n := binary.NativeEndian
	b = n.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(r.Payload)))
	b = n.AppendUint16(b, r.Type)
	b = n.AppendUint16(b, r.Flags|flags)
	b = n.AppendUint32(b, seq)
	b = n.AppendUint32(b, 0) // sender: filled in by the kernel
	b = append(b, r.Payload...)
	return appendPadding(b, len(r.Payload))
}

func appendPadding(b []byte, length int) []byte {
	return append(b, make([]byte, align(length)-length)...)
}

// chunk returns the number of requests for the next send. It is at least one, and the receive buffer has room for all
// their answers.
func chunk(reqs []Request, cost, budget int) int {
	bytes, memory := 0, 0
	for i, r := range reqs {
		bytes += r.wireSize()
		// A refusal may echo the whole request, in an allocation rounded up to a power of two.
		memory += cost + 2*len(r.Payload)
		if i > 0 && (bytes > maxSendBytes || memory > budget) || i == maxRequests {
			return i
		}
	}
	return len(reqs)
}

func eachMessage(b []byte, handle func(header, []byte) error) error {
	for len(b) >= unix.SizeofNlMsghdr {
		n := binary.NativeEndian
		h := header{length: n.Uint32(b), typ: n.Uint16(b[4:]), flags: n.Uint16(b[6:]), seq: n.Uint32(b[8:])}
		if h.length < unix.SizeofNlMsghdr || uint64(h.length) > uint64(len(b)) {
			return fmt.Errorf("read answer: message of %d bytes in a datagram with %d left", h.length, len(b))
		}
		if err := handle(h, b[unix.SizeofNlMsghdr:h.length]); err != nil {
			return err
		}
		b = b[min(align(int(h.length)), len(b)):]
	}
	return nil
}
