package netdev

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func FuzzRoute(f *testing.F) {
	gateway := append(routeHeader(unix.AF_INET), 8, 0, unix.RTA_GATEWAY, 0, 192, 0, 2, 1)
	gateway[routeType] = unix.RTN_UNICAST
	hop := []byte{16, 0, 0, 0, 2, 0, 0, 0, 8, 0, unix.RTA_GATEWAY, 0, 192, 0, 2, 1}
	several := append(routeHeader(unix.AF_INET), append([]byte{20, 0, unix.RTA_MULTIPATH, 0}, hop...)...)
	several[routeType] = unix.RTN_UNICAST
	broadcast := append(routeHeader(unix.AF_INET), 8, 0, unix.RTA_DST, 0, 192, 0, 2, 255)
	broadcast[routeType] = unix.RTN_BROADCAST
	for _, seed := range [][]byte{gateway, several, broadcast, {}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		hops, err := parseGateways(b)
		for _, hop := range hops {
			if !hop.IsValid() {
				t.Errorf("%x was parsed as the next hops %v", b, hops)
			}
		}
		if err == nil { // the message has a header
			if addr, is := broadcastOf(b); is && !addr.IsValid() {
				t.Errorf("%x was parsed as the route of an invalid broadcast address", b)
			}
		}
	})
}

func FuzzListeners(f *testing.F) {
	f.Add([]byte("title\n 0: 0100007F:1F90 00000000:0000 0A 0\n"))
	f.Add([]byte("title\n 0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		listeners := kernel.Listeners{}
		if err := addListeners(listeners, bytes.NewReader(b), inet.TCP, "0A"); err != nil {
			return
		}
		for key := range listeners {
			if !key.Addr.IsValid() {
				t.Errorf("%q was parsed as a listener on %v", b, key)
			}
		}
	})
}

func FuzzLink(f *testing.F) {
	f.Add(append(make([]byte, 16), 9, 0, 3, 0, 'e', 't', 'h', '0', 0, 0, 0, 0))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, name, err := parseLink(b); err == nil && len(name) > max(0, len(b)-16) {
			t.Errorf("%x was parsed as a link with the name %q", b, name)
		}
	})
}
