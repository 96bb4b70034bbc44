package cluster

import (
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// Sender sends datagrams from one socket and expects no answer. Only connection tracking can keep such a flow on a
// removed endpoint.
type Sender struct {
	Local netip.AddrPort

	conn *Conn
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup
}

// StartSender sends UDP datagrams until Stop or the end of the test.
func (h *Host) StartSender(t T, addr string, every time.Duration, options ...DialOption) *Sender {
	t.Helper()
	c, err := h.dial(UDP, addr, optionsOf(options, DefaultWithin))
	if err != nil {
		t.Fatalf("%s -> %s UDP: %v", h.Name, addr, err)
	}
	s := &Sender{Local: c.Local, conn: c, stop: make(chan struct{})}
	s.wg.Go(func() { s.run(every) })
	atEnd(t, s.Stop)
	return s
}

func (s *Sender) run(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 1; ; n++ {
		// Write may return an ICMP error about an earlier datagram.
		_, _ = s.conn.file.WriteString(strconv.Itoa(n) + "\n")
		s.conn.forgetErrors()
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
	}
}

// Stop stops the sender.
func (s *Sender) Stop() {
	s.once.Do(func() { close(s.stop) })
	s.wg.Wait()
	s.conn.Close()
}
