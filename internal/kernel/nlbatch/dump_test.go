package nlbatch

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const multi = unix.NLM_F_MULTI

func done(h header, code int32) []byte {
	return datagram(unix.NLMSG_DONE, multi, h.seq, binary.NativeEndian.AppendUint32(nil, uint32(code)))
}

func TestDump(t *testing.T) {
	part := func(h header, flags uint16, s string) []byte { return datagram(0x20, multi|flags, h.seq, []byte(s)) }
	for _, tt := range []struct {
		name   string
		answer func(header, []byte) [][]byte
		want   []string
		err    error
	}{
		{"empty", func(h header, _ []byte) [][]byte { return [][]byte{done(h, 0)} }, nil, nil},
		{"several datagrams", func(h header, _ []byte) [][]byte {
			return [][]byte{
				slices.Concat(part(h, 0, "one"), part(h, 0, "three")),
				part(h, 0, "four"),
				slices.Concat(part(h, 0, "five5"), done(h, 0)),
			}
		}, []string{"one", "three", "four", "five5"}, nil},
		{"interrupted", func(h header, _ []byte) [][]byte {
			return [][]byte{part(h, 0, "one"), part(h, unix.NLM_F_DUMP_INTR, "two"), done(h, 0)}
		}, nil, ErrDumpInterrupted},
		{"refused", func(h header, _ []byte) [][]byte { return [][]byte{ack(h, unix.EBUSY, "")} }, nil, unix.EBUSY},
		{"fails at the end", func(h header, _ []byte) [][]byte {
			return [][]byte{part(h, 0, "one"), done(h, -int32(unix.ENOMEM))}
		}, nil, unix.ENOMEM},
		{"never ends", func(h header, _ []byte) [][]byte { return [][]byte{part(h, 0, "one")} }, nil, os.ErrDeadlineExceeded},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				c := fakeConn(&fakeSocket{answer: tt.answer})
				payloads, err := c.Dump(ctx, Request{Type: 0x20})
				if !errors.Is(err, tt.err) {
					t.Fatalf("error %v, want %v", err, tt.err)
				}
				var got []string
				for _, p := range payloads {
					got = append(got, string(p))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
				if c.Stats().Dumps != 1 {
					t.Errorf("counted %+v", c.Stats())
				}
			})
		})
	}
}
