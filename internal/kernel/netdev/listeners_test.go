package netdev

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestListeners(t *testing.T) {
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	conn, err := net.Dial("tcp4", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	have, err := (&Backend{}).Listeners()
	if err != nil {
		t.Fatal(err)
	}
	udpPort := udp.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	for key, want := range map[kernel.ServerKey]bool{
		{Addr: tcp.Addr().(*net.TCPAddr).AddrPort(), Protocol: inet.TCP}:                          true,
		{Addr: tcp.Addr().(*net.TCPAddr).AddrPort(), Protocol: inet.UDP}:                          false,
		{Addr: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), udpPort), Protocol: inet.UDP}: true,
		{Addr: conn.LocalAddr().(*net.TCPAddr).AddrPort(), Protocol: inet.TCP}:                    false,
	} {
		if have.At(key) != want {
			t.Errorf("%v: want %t, have %v", key, want, slices.Collect(maps.Keys(have)))
		}
	}
}

func TestListenersOfATable(t *testing.T) {
	const table = `  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:01BB 00000000000000000000000000000000:0000 0A 0 0
   1: B80D0120000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0 0
   2: 0000000000000000FFFF0000010200C0:0016 00000000000000000000000000000000:0000 0A 0 0
   3: B80D0120000000000000000001000000:0051 B80D0120000000000000000002000000:9C40 01 0 0
`
	listeners := kernel.Listeners{}
	if err := addListeners(listeners, strings.NewReader(table), inet.TCP, stateListen); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]bool{
		"192.0.2.1:443": true, "[2001:db8::1]:443": true, "[2001:db8::1]:80": true, "[2001:db8::2]:80": false, "192.0.2.1:22": true,
		"192.0.2.2:22": false, "[2001:db8::1]:81": false,
	} {
		if got := listeners.At(kernel.ServerKey{Addr: netip.MustParseAddrPort(at), Protocol: inet.TCP}); got != want {
			t.Errorf("%s: %t", at, got)
		}
	}
	for _, bad := range []string{"title\n0: 1\n", "title\n0: 0100007F 0 0A\n", "title\n0: 01:0050 0 0A\n"} {
		if addListeners(listeners, strings.NewReader(bad), inet.TCP, stateListen) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
