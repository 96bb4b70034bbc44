package nlbatch

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzAnswers(f *testing.F) {
	f.Add(datagram(unix.NLMSG_ERROR, unix.NLM_F_CAPPED, 1, make([]byte, 20)))
	f.Add(ack(header{seq: 2}, unix.EINVAL, "text"))
	f.Add(datagram(unix.NLMSG_DONE, unix.NLM_F_MULTI, 1, make([]byte, 4)))
	f.Add(append(datagram(0x20, 0, 1, []byte("answer")), ack(header{seq: 1}, 0, "")...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > maxDump {
			return
		}
		sock := func() *fakeSocket { return &fakeSocket{inbox: [][]byte{b}, readErr: unix.ENOBUFS} }
		answers, errs := fakeConn(sock()).Get(t.Context(), requests(2))
		if len(answers) != 2 || len(errs) != 2 {
			t.Fatalf("%d answers, %d errors", len(answers), len(errs))
		}
		if _, err := fakeConn(sock()).Dump(t.Context(), Request{}); err != nil && err.Error() == "" {
			t.Error("error without text")
		}
	})
}

func FuzzEachAttr(f *testing.F) {
	f.Add(AppendUint32(AppendString(nil, 3, "name"), 4|unix.NLA_F_NET_BYTEORDER, 7))
	f.Add(AppendNest(nil, 7, func(b []byte) []byte { return AppendUint8(b, 1, 9) }))
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		_ = EachAttr(b, func(_ uint16, v []byte) error {
			total += attrHeader + len(v)
			return nil
		})
		if total > len(b) {
			t.Errorf("%d bytes of attributes in %d bytes", total, len(b))
		}
		stop := errors.New("stop")
		if err := EachAttr(AppendUint8(nil, 1, 1), func(uint16, []byte) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("the handler's error became %v", err)
		}
	})
}
