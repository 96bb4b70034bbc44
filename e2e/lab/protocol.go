package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// The host and the runner exchange frames over one virtio-serial port. A frame is a kind, a length, and that many
// bytes. A single port keeps stdout, stderr and the exit report in order.
type frameKind byte

const (
	frameHello    frameKind = 'H' // guest: the command is about to start
	frameStdout   frameKind = 'O' // guest
	frameStderr   frameKind = 'E' // guest
	frameStdinAck frameKind = 'A' // guest: frameStdin consumed, send the next
	frameOutAck   frameKind = 'B' // host: frameStdout or frameStderr consumed
	frameExit     frameKind = 'X' // guest: exitReport as JSON; the last frame
	frameStdin    frameKind = 'I' // host: input; empty means end of file
	frameWindow   frameKind = 'W' // host: windowSize as JSON
	frameStop     frameKind = 'K' // host: kill the command and report
)

const maxFrame = 1 << 20

// Both sides limit the data in transit. On user-mode Linux's serial line, a write fails if the host does not read
// fast enough, so all output in transit must fit into the socket behind the line. In the other direction, input stops
// forever once the terminal's 4 KiB buffer has filled up.
const (
	outPiece  = 4 << 10
	outWindow = 16
	inPiece   = 2 << 10
)

// exitReport describes how the command ended and whether the kernel reported a problem.
type exitReport struct {
	Status int           // as in a shell: 128+n for signal n
	Error  string        // why the command could not be started
	Kernel string        // excerpt of the kernel log after an oops or warning
	Took   time.Duration // from frameHello to this report, on the guest's clock
}

type windowSize struct{ Rows, Cols uint16 }

// frameWriter writes whole frames. It is safe for concurrent use.
type frameWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frameWriter) write(kind frameKind, payload []byte) error {
	frame := make([]byte, 5+len(payload))
	frame[0] = byte(kind)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	copy(frame[5:], payload)
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(frame)
	return err
}

func (f *frameWriter) writeJSON(kind frameKind, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return f.write(kind, payload)
}

// stream returns an io.Writer whose bytes become frames of one kind. A frame occupies a slot in the window until it
// is acknowledged.
func (f *frameWriter) stream(kind frameKind, window chan struct{}) io.Writer {
	return frameStream{f, kind, window}
}

type frameStream struct {
	w      *frameWriter
	kind   frameKind
	window chan struct{}
}

func (s frameStream) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n := min(len(p)-done, outPiece)
		s.window <- struct{}{}
		if err := s.w.write(s.kind, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

func readFrame(r io.Reader) (frameKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, fmt.Errorf("frame %q has %d bytes; the maximum is %d", head[0], size, maxFrame)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	return frameKind(head[0]), payload, nil
}
