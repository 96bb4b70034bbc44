package forward

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
)

// readHeader reads a header as a server does. It follows sections 2.1 and 2.2 of the specification, and accepts both
// forms.
func readHeader(r *bufio.Reader) (client, at netip.AddrPort, err error) {
	if start, err := r.Peek(5); err == nil && string(start) == "PROXY" {
		return readText(r)
	}
	return readBinary(r)
}

func readText(r *bufio.Reader) (client, at netip.AddrPort, err error) {
	line, err := r.ReadString('\n')
	fields := strings.Split(strings.TrimSuffix(line, "\r\n"), " ")
	if err != nil || !strings.HasSuffix(line, "\r\n") || len(line) > 107 || len(fields) != 6 {
		return client, at, fmt.Errorf("%q, %w", line, err)
	}
	var ends [2]netip.AddrPort
	for i := range ends {
		addr, err := netip.ParseAddr(fields[2+i])
		port, portErr := strconv.ParseUint(fields[4+i], 10, 16)
		if err = errors.Join(err, portErr); err != nil || strconv.FormatUint(port, 10) != fields[4+i] ||
			fields[1] != map[bool]string{true: "TCP4", false: "TCP6"}[addr.Is4()] || addr.Is4In6() || addr.Zone() != "" {
			return client, at, fmt.Errorf("%q, %w", line, err)
		}
		ends[i] = netip.AddrPortFrom(addr, uint16(port))
	}
	return ends[0], ends[1], nil
}

func readBinary(r *bufio.Reader) (client, at netip.AddrPort, err error) {
	fixed := make([]byte, 16)
	if _, err := io.ReadFull(r, fixed); err != nil {
		return client, at, err
	}
	rest := make([]byte, binary.BigEndian.Uint16(fixed[14:]))
	if _, err := io.ReadFull(r, rest); err != nil {
		return client, at, err
	}
	size, known := map[byte]int{0x11: 4, 0x21: 16}[fixed[13]]
	if hex.EncodeToString(fixed[:13]) != "0d0a0d0a000d0a515549540a21" || !known || len(rest) != 2*size+4 {
		return client, at, fmt.Errorf("%x %x", fixed, rest)
	}
	end := func(addr, port []byte) netip.AddrPort {
		ip, _ := netip.AddrFromSlice(addr)
		return netip.AddrPortFrom(ip, uint16(port[0])<<8|uint16(port[1]))
	}
	return end(rest[:size], rest[2*size:]), end(rest[size:2*size], rest[2*size+2:]), nil
}

func TestHeaderFormats(t *testing.T) {
	const signature = "0d0a0d0a000d0a515549540a"
	for _, c := range []struct{ client, at, text, binary string }{
		{"192.0.2.1:40000", "203.0.113.20:80", "PROXY TCP4 192.0.2.1 203.0.113.20 40000 80\r\n", "2111000cc0000201cb007114" + "9c400050"},
		{"[2001:db8::1]:1", "[fd00::10]:65535", "PROXY TCP6 2001:db8::1 fd00::10 1 65535\r\n",
			"21210024" + "20010db8000000000000000000000001" + "fd000000000000000000000000000010" + "0001ffff"},
		{"[::ffff:192.0.2.1]:40000", "[::ffff:203.0.113.20]:80", "PROXY TCP4 192.0.2.1 203.0.113.20 40000 80\r\n", "2111000cc0000201cb007114" + "9c400050"},
		{"[fe80::2%eth0]:1", "[fe80::1%eth0]:2", "PROXY TCP6 fe80::2 fe80::1 1 2\r\n",
			"21210024" + "fe800000000000000000000000000002" + "fe800000000000000000000000000001" + "00010002"},
	} {
		client, at := netip.MustParseAddrPort(c.client), netip.MustParseAddrPort(c.at)
		if got := string(ProxyV1.of(client, at)); got != c.text {
			t.Errorf("%s: %q, want %q", c.client, got, c.text)
		}
		if got := hex.EncodeToString(ProxyV2.of(client, at)); got != signature+c.binary {
			t.Errorf("%s: %s, want %s", c.client, got, signature+c.binary)
		}
		if got := Header(0).of(client, at); got != nil {
			t.Errorf("%s: %q without the protocol", c.client, got)
		}
	}
}

// TestHeadersCanBeRead: a server reads the addresses of any client, and no byte more.
func TestHeadersCanBeRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "size")
		end := func(name string) netip.AddrPort {
			addr, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, name))
			return netip.AddrPortFrom(addr.Unmap(), rapid.Uint16().Draw(t, name+" port"))
		}
		client, at := end("client"), end("at")
		if client.Addr().Is4() != at.Addr().Is4() {
			t.Skip("one address is IPv4 in IPv6")
		}
		for _, h := range []Header{ProxyV1, ProxyV2} {
			header := h.of(client, at)
			in := bufio.NewReader(bytes.NewReader(append(header, "data"...)))
			gotClient, gotAt, err := readHeader(in)
			rest, _ := io.ReadAll(in)
			if err != nil || gotClient != client || gotAt != at || string(rest) != "data" || len(header) > 107 {
				t.Fatalf("%q: client %s, at %s, then %q, %v", header, gotClient, gotAt, rest, err)
			}
		}
	})
}

// startReader starts an endpoint that expects a header. It greets the client with the addresses in the header before the
// client sends anything, and echoes all data.
func startReader(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	return freeport.Serve(t, address, func(c *net.TCPConn) {
		in := bufio.NewReader(c)
		client, at, err := readHeader(in)
		if _, writeErr := fmt.Fprintln(c, client, at, err); writeErr == nil && err == nil {
			_, _ = io.Copy(c, in)
		}
	})
}

// ends returns the greeting of an endpoint that has read the right header of a client's connection.
func (c *client) ends() string { return fmt.Sprint(c.LocalAddr(), " ", c.RemoteAddr(), " <nil>") }

// TestEndpointsSeeClients: the header arrives before the client sends anything, contains the client's connection for each
// combination of families, and leaves the client's data unchanged. The client may end its request before the reply.
func TestEndpointsSeeClients(t *testing.T) {
	f, sent := open(t, limits), bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, header := range []Header{ProxyV1, ProxyV2} {
		for _, family := range []string{"127.0.0.1:0 127.0.0.1:0", "127.0.0.1:0 [::1]:0", "[::1]:0 127.0.0.1:0", "[::1]:0 [::1]:0"} {
			listen, endpoint, _ := strings.Cut(family, " ")
			to := To(startReader(t, endpoint))
			to.Header = header
			at, err := f.Set(Listen{TCP, netip.MustParseAddrPort(listen), fmt.Sprint(family, header)}, to)
			if err != nil {
				t.Fatal(err)
			}
			c := mustDial(t, Listen{Protocol: TCP, At: at})
			if c.name != c.ends() {
				t.Errorf("header %d, %s: the endpoint read %s, want %s", header, family, c.name, c.ends())
			}
			go func() {
				_, _ = c.Write(sent)
				_ = c.CloseWrite()
			}()
			if got, err := io.ReadAll(c.in); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("header %d, %s: received %d of %d bytes: %v", header, family, len(got), len(sent), err)
			}
		}
	}
}

// TestEachAttemptHasItsHeader: also an endpoint that is tried after dead ones gets the header, once.
func TestEachAttemptHasItsHeader(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	to := Target{Endpoints: []Endpoint{{deadEndpoint(t), 1}, {deadEndpoint(t), 1}, {startReader(t, "127.0.0.1:0"), 1}}, Header: ProxyV2}
	setTarget(t, f, at, to)
	for range 6 {
		c := mustDial(t, at)
		if c.name != c.ends() {
			t.Errorf("the endpoint read %s, want %s", c.name, c.ends())
		}
		c.echoes(t)
	}
}

// TestHeaderChanges: a change affects new connections only.
func TestHeaderChanges(t *testing.T) {
	f, at, to := open(t, limits), freePort(t, TCP), To(startEndpoint(t, "a"))
	setTarget(t, f, at, to)
	before := mustDial(t, at)
	to.Header = ProxyV1
	setTarget(t, f, at, to)
	before.echoes(t)
	c := mustDial(t, at)
	if got, err := c.in.ReadString('\n'); err != nil || got != string(ProxyV1.of(netip.MustParseAddrPort(c.LocalAddr().String()), at.At)) {
		t.Errorf("a new connection begins with %q, %v", got, err)
	}
	c.echoes(t)
	to.Header = 0
	setTarget(t, f, at, to)
	mustDial(t, at).echoes(t)
}

// TestUDPHasNoHeader: datagrams stay as they are.
func TestUDPHasNoHeader(t *testing.T) {
	f, at, to := open(t, limits), freePort(t, UDP), To(startUDP(t, "a"))
	to.Header = ProxyV2
	setTarget(t, f, at, to)
	if got := ask(t, udpClient(t, at), "hello"); got != "a:hello" {
		t.Error(got)
	}
}
