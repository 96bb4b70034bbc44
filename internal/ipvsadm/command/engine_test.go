package command

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestConnectionsWithAnEngine compares connections with data of a persistence engine: the Call-ID of a client's SIP
// request.
func TestConnectionsWithAnEngine(t *testing.T) {
	labtest.NetNS(t)
	restore(t, []string{
		"-A -u 127.0.0.2:5060 -s rr -p 60 --pe sip", "-a -u 127.0.0.2:5060 -r 127.0.0.1:5060 -m",
		"-A -u [::1]:5060 -s rr -p 60 --pe sip", "-a -u [::1]:5060 -r [::1]:5061 -m",
		"-A -u 127.100.100.100:50000 -s rr -p 77 --pe sip", "-a -u 127.100.100.100:50000 -r 127.100.100.101:50000 -m",
	})
	v4 := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}, Port: 5060}
	for _, call := range []string{"12345678@127.0.0.1", "a", strings.Repeat("long", 16), "%s%d%n"} {
		sendTo(t, v4, sipRequest(call))
	}
	sendTo(t, &unix.SockaddrInet6{Addr: [16]byte{15: 1}, Port: 5060}, sipRequest("12345678@[::1]"))
	sendTo(t, &unix.SockaddrInet4{Addr: [4]byte{127, 100, 100, 100}, Port: 50000}, sipRequest("12345678@127.0.0.1"))
	sendTo(t, v4, []byte("no SIP"))
	for _, args := range []string{"-Lnc", "-Lc", "-Lnc --persistent-conn", "-Lc --persistent-conn"} {
		fields := strings.Fields(args)
		theirs, our := withoutClock(packaged(t, "", fields...)), withoutClock(ours(t, fields...))
		if diff := cmp.Diff(theirs, our); diff != "" {
			t.Errorf("ipvsadm %s (-packaged +ours):\n%s", args, diff)
		}
	}
	if got := ours(t, "-Lnc", "--persistent-conn").Stdout; !strings.Contains(got, "12345678@127.0.0.1") {
		t.Errorf("no Call-ID:\n%s", got)
	}
}

var expires = regexp.MustCompile(` \d\d:\d\d `)

// withoutClock removes expiry times, which change between two calls.
func withoutClock(o output) output {
	o.Stdout = expires.ReplaceAllString(o.Stdout, " --:-- ")
	return o
}

func sipRequest(call string) []byte {
	return fmt.Appendf(nil, "INVITE sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:5060;branch=z9hG4bK1\r\nFrom: <sip:alice@example.com>;tag=1\r\n"+
		"To: <sip:bob@example.com>\r\nCall-ID: %s\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n", call)
}

// sendTo sends one datagram. The kernel drops a datagram if the engine finds no data in it.
func sendTo(t *testing.T, to unix.Sockaddr, payload []byte) {
	t.Helper()
	if err := unix.Sendto(socket(t, to, unix.SOCK_DGRAM), payload, 0, to); err != nil && err != unix.EPERM && err != unix.ECONNREFUSED {
		t.Fatal(err)
	}
}
