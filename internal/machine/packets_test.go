package machine

import (
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
)

// TestEchoPackets: the IP packet of an echo request has the requested size. Only the reply to the current request counts as an answer.
func TestEchoPackets(t *testing.T) {
	ipv4Header := append([]byte{0x46}, make([]byte, 23)...) // with four bytes of options
	for _, c := range []struct {
		p             pinger
		header        []byte
		bytes         int
		request, kind byte
	}{
		{pinger{id: 7, rounds: 2}, ipv4Header, 20, echoRequest, echoReply},
		{pinger{id: 7, rounds: 2, v6: true}, nil, 40, echoRequest6, echoReply6},
	} {
		b := c.p.request(1400)
		if len(b) != 1400-c.bytes || b[0] != c.request || !c.p.v6 && checksum(b) != 0 {
			t.Errorf("%d bytes of type %d with checksum %#x", len(b), b[0], checksum(b))
		}
		answer := append(append([]byte{}, c.header...), b...)
		if c.p.answers(answer) {
			t.Error("a request counts as an answer")
		}
		answer[len(c.header)] = c.kind
		if !c.p.answers(answer) {
			t.Error("the answer does not count")
		}
		for n := range len(c.header) + echoHeader {
			if c.p.answers(answer[:n]) {
				t.Errorf("the first %d bytes of an answer count", n)
			}
		}
		for _, other := range []pinger{{id: 8, rounds: 2, v6: c.p.v6}, {id: 7, rounds: 3, v6: c.p.v6}} {
			if other.answers(answer) {
				t.Errorf("the answer to another request counts for %+v", other)
			}
		}
	}
}

// TestARPPackets: the request follows RFC 5227. A reply for another address does not count as a claim.
func TestARPPackets(t *testing.T) {
	own, addr := net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.MustParseAddr("192.168.50.11")
	b := arpRequest(own, addr)
	if got, want := hex.EncodeToString(b), "0001080006040001"+"020000000001"+"00000000"+"000000000000"+"c0a8320b"; got != want {
		t.Errorf("request %s, want %s", got, want)
	}
	if _, ok := claims(b, addr); ok {
		t.Error("a request without a sender's address counts as a claim")
	}
	copy(b[senderMAC:], []byte{2, 0, 0, 0, 0, 9})
	copy(b[senderAddress:], addr.AsSlice())
	if mac, ok := claims(append(b, make([]byte, 18)...), addr); !ok || mac != "02:00:00:00:00:09" { // Ethernet pads short packets
		t.Errorf("got %q, %t", mac, ok)
	}
	for n := range arpLength {
		if _, ok := claims(b[:n], addr); ok {
			t.Errorf("the first %d bytes of a reply count", n)
		}
	}
	if _, ok := claims(b, addr.Next()); ok {
		t.Error("a reply for another address counts")
	}
}
