package forward

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Header is what each connection to an endpoint begins with. The zero value is nothing.
type Header uint8

// The headers of the PROXY protocol, as https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt specifies them. They
// contain the addresses and ports of both ends of the client's connection.
const (
	ProxyV1 Header = 1 // text
	ProxyV2 Header = 2 // binary
)

// of returns the header of a client's connection. It is sent immediately and in one write: the endpoint may speak first,
// so the header does not wait for the client's data.
func (h Header) of(client, at netip.AddrPort) []byte {
	client, at = plain(client), plain(at)
	switch h {
	case ProxyV1:
		family := 4
		if client.Addr().Is6() {
			family = 6
		}
		return fmt.Appendf(nil, "PROXY TCP%d %s %s %d %d\r\n", family, client.Addr(), at.Addr(), client.Port(), at.Port())
	case ProxyV2:
		const command, tcp4, tcp6 = 0x21, 0x11, 0x21 // version 2, relayed for a client
		kind := byte(tcp4)
		if client.Addr().Is6() {
			kind = tcp6
		}
		addresses := append(client.Addr().AsSlice(), at.Addr().AsSlice()...)
		addresses = binary.BigEndian.AppendUint16(addresses, client.Port())
		addresses = binary.BigEndian.AppendUint16(addresses, at.Port())
		header := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), command, kind, 0, byte(len(addresses)))
		return append(header, addresses...)
	}
	return nil
}

// plain returns an address as both forms of the header contain it. Both ends of a connection are then of the same family.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
