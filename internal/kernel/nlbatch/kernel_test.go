package nlbatch

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

const loopback = 1 // the interface's index in every network namespace

func dialRoute(t testing.TB) *Conn {
	t.Helper()
	labtest.NetNSNoIPVS(t)
	c, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newAddress(a netip.Addr) Request {
	b := []byte{unix.AF_INET, 32, 0, unix.RT_SCOPE_UNIVERSE}
	b = binary.NativeEndian.AppendUint32(b, loopback)
	return Request{
		Type: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		Payload: AppendAttr(b, unix.IFA_LOCAL, a.AsSlice()),
	}
}

func addressDump() Request {
	return Request{Type: unix.RTM_GETADDR, Payload: []byte{unix.AF_INET, 0, 0, 0}}
}

func TestBatchOnKernel(t *testing.T) {
	c := dialRoute(t)
	const n = 2000
	var reqs []Request
	for i := range n {
		reqs = append(reqs, newAddress(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})))
	}
	reqs[700] = reqs[699]                       // refused: it already exists
	reqs[1500].Payload = reqs[1500].Payload[:8] // refused: it has no address
	for i, err := range c.Do(t.Context(), reqs) {
		want := map[int]error{700: unix.EEXIST, 1500: unix.EINVAL}[i]
		if !errors.Is(err, want) {
			t.Fatalf("request %d: %v, want %v", i, err, want)
		}
	}
	if diff := cmp.Diff(Stats{Requests: n, Sends: (n + maxRequests - 1) / maxRequests}, c.Stats()); diff != "" {
		t.Error(diff)
	}
	payloads, err := c.Dump(t.Context(), addressDump())
	if err != nil {
		t.Fatal(err)
	}
	if want := n - 2 + 1; len(payloads) != want { // plus 127.0.0.1
		t.Errorf("%d addresses, want %d", len(payloads), want)
	}
}

func TestExplanationFromKernel(t *testing.T) {
	c := dialRoute(t)
	r := newAddress(netip.MustParseAddr("10.0.0.1"))
	r.Payload[1] = 99 // prefix length
	var e *Error
	if err := c.Do(t.Context(), []Request{r})[0]; !errors.As(err, &e) || e.Errno != unix.EINVAL {
		t.Fatal(err)
	}
	t.Logf("explanation: %q", e.Text)
}

func TestGetOnKernel(t *testing.T) {
	c := dialRoute(t)
	const n = 600
	reqs := make([]Request, n)
	for i := range reqs {
		msg := unix.IfInfomsg{Index: loopback}
		if i%3 == 1 {
			msg.Index = 4711
		}
		reqs[i] = Request{Type: unix.RTM_GETLINK, Payload: (*[unix.SizeofIfInfomsg]byte)(unsafe.Pointer(&msg))[:]}
	}
	answers, errs := c.Get(t.Context(), reqs)
	for i := range reqs {
		want, count := error(nil), 1
		if i%3 == 1 {
			want, count = unix.ENODEV, 0
		}
		if !errors.Is(errs[i], want) || len(answers[i]) != count {
			t.Fatalf("request %d: %d answers, %v", i, len(answers[i]), errs[i])
		}
	}
}

func TestRedialOnKernel(t *testing.T) {
	c := dialRoute(t)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Dup3(int(file.Fd()), c.sock.(*netlinkSocket).fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	req := newAddress(netip.MustParseAddr("10.0.0.1"))
	if err := c.Do(t.Context(), []Request{req})[0]; !errors.Is(err, ErrNotSent) {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), []Request{req})[0]; err != nil {
		t.Fatal(err)
	}
}

// Even the smallest receive buffer does not overflow, because the sends are split to fit it.
func TestSmallReceiveBuffer(t *testing.T) {
	c := dialRoute(t)
	s := c.sock.(*netlinkSocket)
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	room, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		t.Fatal(err)
	}
	s.room = room
	reqs := make([]Request, 100)
	for i := range reqs {
		reqs[i] = newAddress(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	if err := errors.Join(c.Do(t.Context(), reqs)...); err != nil {
		t.Error(err)
	}
	// If the buffer overflows anyway, no operation that may have failed is reported as done.
	s.room = 1 << 30
	unknown := 0
	for _, err := range c.Do(t.Context(), reqs) {
		switch {
		case errors.Is(err, errOutcomeUnknown) && errors.Is(err, unix.ENOBUFS):
			unknown++
		case !errors.Is(err, unix.EEXIST):
			t.Errorf("got %v", err)
		}
	}
	if unknown == 0 {
		t.Error("the buffer did not overflow")
	}
}
