package nlbatch

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestDoAttributesErrors(t *testing.T) {
	s := &fakeSocket{answer: ackAll(unix.EEXIST, 2, 4)}
	c := fakeConn(s)
	for i, err := range c.Do(t.Context(), requests(6)) {
		refused := i == 2 || i == 4
		if errors.Is(err, unix.EEXIST) != refused || (err != nil) != refused {
			t.Errorf("request %d: %v", i, err)
		}
		if refused && !strings.Contains(err.Error(), "number is unlucky") {
			t.Errorf("request %d: %v lacks the kernel's explanation", i, err)
		}
	}
	if diff := cmp.Diff(Stats{Requests: 6, Sends: 1}, c.Stats()); diff != "" {
		t.Error(diff)
	}
}

// Only the last request of each send is acknowledged, because answers are a large part of a write's cost.
func TestOneAnswerPerSend(t *testing.T) {
	s := &fakeSocket{answer: ackAll(0)}
	answered := 0
	all := s.answer
	s.answer = func(h header, b []byte) [][]byte {
		if h.flags&unix.NLM_F_ACK != 0 {
			answered++
		}
		return all(h, b)
	}
	if err := errors.Join(fakeConn(s).Do(t.Context(), requests(600))...); err != nil {
		t.Fatal(err)
	}
	if answered != len(s.sent) {
		t.Errorf("%d answers to %d sends", answered, len(s.sent))
	}
}

func TestChunks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		n     int
		size  int
		room  int
		sends []int
	}{
		{"none", 0, 3, 1 << 20, nil},
		{"one", 1, 3, 1 << 20, []int{1}},
		{"count", 600, 3, 1 << 20, []int{256, 256, 88}},
		{"answers do not fit", 5, 0, 2 * ackCost, []int{2, 2, 1}},
		{"nothing fits", 3, 0, 1, []int{1, 1, 1}},
		{"bytes", 5, 40 << 10, 1 << 30, []int{2, 2, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &fakeSocket{answer: ackAll(0), room: tt.room}
			reqs := requests(tt.n)
			for i := range reqs {
				reqs[i].Payload = make([]byte, tt.size)
			}
			if err := errors.Join(fakeConn(s).Do(t.Context(), reqs)...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.sends, s.sent); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFailureClosesTheConnection(t *testing.T) {
	two := func(h header, _ []byte) [][]byte {
		if h.seq <= 2 {
			return [][]byte{ack(h, unix.EEXIST, "")}
		}
		return nil
	}
	for _, tt := range []struct {
		name  string
		sock  *fakeSocket
		cause error
	}{
		{"buffer overflow", &fakeSocket{answer: two, readErr: unix.ENOBUFS}, unix.ENOBUFS},
		{"no answer", &fakeSocket{answer: two}, os.ErrDeadlineExceeded},
		{"foreign sequence number", &fakeSocket{answer: func(h header, b []byte) [][]byte {
			if h.seq > 2 {
				h.seq += 1000
			}
			return [][]byte{ack(h, unix.EEXIST, "")}
		}}, nil},
		{"answered twice", &fakeSocket{answer: func(h header, b []byte) [][]byte {
			if h.seq == 2 {
				return [][]byte{ack(h, unix.EEXIST, ""), ack(h, unix.EEXIST, "")}
			}
			return two(h, b)
		}}, nil},
		{"cut short", &fakeSocket{answer: func(h header, b []byte) [][]byte {
			if h.seq == 3 {
				return [][]byte{datagram(unix.NLMSG_ERROR, 0, h.seq, []byte{1})}
			}
			return two(h, b)
		}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.sock.room = 4 * (ackCost + 6)
				next := &fakeSocket{answer: ackAll(0)}
				c := fakeConn(tt.sock, next)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				errs := c.Do(ctx, requests(6))
				for i, want := range []error{unix.EEXIST, unix.EEXIST, errOutcomeUnknown, errOutcomeUnknown, ErrNotSent, ErrNotSent} {
					if !errors.Is(errs[i], want) {
						t.Errorf("request %d: %v, want %v", i, errs[i], want)
					}
					if i >= 2 && !errors.Is(errs[i], tt.cause) && tt.cause != nil {
						t.Errorf("request %d: %v, want cause %v", i, errs[i], tt.cause)
					}
				}
				if !tt.sock.closed {
					t.Error("socket is still open")
				}
				if err := errors.Join(c.Do(t.Context(), requests(1))...); err != nil {
					t.Errorf("next use: %v", err)
				}
				if len(next.sent) != 1 {
					t.Errorf("next use sent %v over the new socket", next.sent)
				}
			})
		})
	}
}

func TestNotSent(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name  string
		conn  *Conn
		ctx   context.Context
		cause error
	}{
		{"send fails", fakeConn(&fakeSocket{sendErr: unix.ENOMEM}), t.Context(), unix.ENOMEM},
		{"dial fails", fakeConn(), t.Context(), unix.ENFILE},
		{"canceled", fakeConn(&fakeSocket{}), canceled, context.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, err := range tt.conn.Do(tt.ctx, requests(2)) {
				if !errors.Is(err, ErrNotSent) || !errors.Is(err, tt.cause) {
					t.Errorf("got %v", err)
				}
			}
			if s := tt.conn.Stats(); s != (Stats{}) {
				t.Errorf("counted %+v", s)
			}
		})
	}
}

func TestGet(t *testing.T) {
	s := &fakeSocket{answer: func(h header, b []byte) [][]byte {
		if b[0] == 1 {
			return [][]byte{ack(h, unix.ESRCH, "")}
		}
		return [][]byte{datagram(0x20, 0, h.seq, []byte{'a', b[0]}), ack(h, 0, "")}
	}}
	answers, errs := fakeConn(s).Get(t.Context(), requests(3))
	want := [][]Message{
		{{Type: 0x20, Payload: []byte{'a', 0}}},
		nil,
		{{Type: 0x20, Payload: []byte{'a', 2}}},
	}
	if diff := cmp.Diff(want, answers); diff != "" {
		t.Error(diff)
	}
	if errs[0] != nil || !errors.Is(errs[1], unix.ESRCH) || errs[2] != nil {
		t.Error(errs)
	}
}
