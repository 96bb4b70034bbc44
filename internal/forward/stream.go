package forward

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// stream is an open connection of a client, and the connection to its endpoint.
type stream struct {
	Connection
	client, server *source
	tallies        tallies
	quiet          time.Duration // how long both directions must be silent before a closing forwarder ends the stream

	mu sync.Mutex
	// silent are the sources from which no data came for that time. A source that has ended is not silent: the other
	// direction may still carry the reply.
	silent map[*source]bool
	over   int // how many directions have ended
	// in and out are the client's packets that are counted.
	in, out uint32
	// counting is true while the next countPackets is due.
	counting atomic.Bool
}

// packetsAfter is how long after data its packets are counted: asking the kernel for each piece of data would slow it down.
const packetsAfter = time.Second

// count counts data that comes from one end.
func (s *stream) count(from *source, bytes int64) {
	more := Traffic{BytesIn: uint64(bytes)}
	if from == s.server {
		more = Traffic{BytesOut: uint64(bytes)}
	}
	s.tallies.add(more)
	if !s.counting.Swap(true) {
		time.AfterFunc(packetsAfter, s.countPackets)
	}
}

// countPackets counts the packets between client and agent since the last time. The kernel knows them until the socket is closed.
func (s *stream) countPackets() {
	s.counting.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if in, out, ok := s.client.segments(); ok {
		s.tallies.add(Traffic{PacketsIn: uint64(in - s.in), PacketsOut: uint64(out - s.out)}) // also after an overflow
		s.in, s.out = in, out
	}
}

// run copies in both directions until both have ended. The one that ends last closes both connections.
func (s *stream) run() {
	var directions sync.WaitGroup
	directions.Go(func() { s.copy(s.server, s.client) })
	directions.Go(func() { s.copy(s.client, s.server) })
	directions.Wait()
}

func (s *stream) close() {
	s.countPackets()
	_ = s.client.conn.Close()
	_ = s.server.conn.Close()
}

// copy copies one direction. EOF closes only this direction; an error resets both connections, even if it occurs after the EOF: a client that is
// gone must not keep an endpoint's connection open. A deadline exists only while the forwarder is closing.
func (s *stream) copy(to, from *source) {
	for interrupted := true; ; interrupted = false {
		n, err := s.copyAll(to, from)
		switch {
		case err == nil:
			both := s.ended(from) // before the client's connection can end
			_ = to.conn.CloseWrite()
			switch {
			case both:
				s.close()
			case from.fails() && !s.bothEnded():
				s.reset()
			}
			return
		case !errors.Is(err, os.ErrDeadlineExceeded) || s.silence(from, n == 0 && !interrupted):
			s.reset()
			return
		}
	}
}

// copyAll copies until the end or an error.
func (s *stream) copyAll(to, from *source) (total int64, err error) {
	for count := s.count; ; {
		n, err := from.copyNext(to, count)
		if total += n; n == 0 || err != nil {
			return total, err
		}
	}
}

// endWhenQuiet interrupts both directions, which then end together once both are silent.
func (s *stream) endWhenQuiet() {
	_ = s.client.conn.SetReadDeadline(time.Now())
	_ = s.server.conn.SetReadDeadline(time.Now())
}

// silence records whether a source is silent, gives it more time, and reports whether both are silent.
func (s *stream) silence(from *source, silent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[from] = silent
	_ = from.conn.SetReadDeadline(time.Now().Add(s.quiet))
	return s.silent[s.client] && s.silent[s.server]
}

// ended records that a source sends no more data, and reports whether this is true of both.
func (s *stream) ended(from *source) (both bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.silent, from)
	s.over++
	return s.over == 2
}

func (s *stream) bothEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over == 2
}

func (s *stream) reset() {
	s.countPackets()
	reset(s.client.conn)
	reset(s.server.conn)
}

// reset closes a connection with a RST, so that the client receives an error instead of an empty response.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
