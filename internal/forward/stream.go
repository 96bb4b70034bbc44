package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// stream is an open connection of a client, and the connection to its endpoint.
type stream struct {
	Connection
	client, server *net.TCPConn
	tallies        tallies
	quiet          time.Duration // how long both directions must be silent before a closing forwarder ends the stream

	mu sync.Mutex
	// silent are the sources from which no data came for that time. A source that has ended is not silent: the other
	// direction may still carry the reply.
	silent map[*net.TCPConn]bool
	last   Traffic
}

// carried returns what the connection has carried so far.
func (s *stream) carried() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, ok := carried(s.client, s.server); ok {
		s.last = now
	}
	return s.last
}

// run copies in both directions until both have ended.
func (s *stream) run() {
	var directions sync.WaitGroup
	directions.Go(func() { s.copy(s.server, s.client) })
	directions.Go(func() { s.copy(s.client, s.server) })
	directions.Wait()
	s.carried() // a closed socket has no counters
	_ = s.client.Close()
	_ = s.server.Close()
}

// copy copies one direction. EOF closes only this direction; an error resets both connections. A deadline exists only
// while the forwarder is closing.
func (s *stream) copy(to, from *net.TCPConn) {
	for interrupted := true; ; interrupted = false {
		n, err := io.Copy(to, from)
		switch {
		case err == nil:
			s.ended(from)
			_ = to.CloseWrite()
			return
		case !errors.Is(err, os.ErrDeadlineExceeded) || s.silence(from, n == 0 && !interrupted):
			s.reset()
			return
		}
	}
}

// endWhenQuiet interrupts both directions, which then end together once both are silent.
func (s *stream) endWhenQuiet() {
	_ = s.client.SetReadDeadline(time.Now())
	_ = s.server.SetReadDeadline(time.Now())
}

// silence records whether a source is silent, gives it more time, and reports whether both are silent.
func (s *stream) silence(from *net.TCPConn, silent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[from] = silent
	_ = from.SetReadDeadline(time.Now().Add(s.quiet))
	return s.silent[s.client] && s.silent[s.server]
}

// ended records that a source sends no more data.
func (s *stream) ended(from *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.silent, from)
}

func (s *stream) reset() {
	s.carried()
	reset(s.client)
	reset(s.server)
}

// reset closes a connection with a RST, so that the client receives an error instead of an empty response.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
