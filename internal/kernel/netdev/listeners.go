package netdev

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// socketTables list the sockets of the calling thread's network namespace:
//
//	sl  local_address rem_address   st tx_queue rx_queue ...
//	 0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 ...
//
// An address is a sequence of 32-bit words in host order, and a port is in network order. These files exist on every kernel, unlike the
// modules for socket diagnostics. The agent reads them only if a Service claims an address of the node.
var socketTables = []struct {
	file     string
	protocol inet.Protocol
	state    string
}{
	{"/proc/thread-self/net/tcp", inet.TCP, stateListen},
	{"/proc/thread-self/net/tcp6", inet.TCP, stateListen},
	{"/proc/thread-self/net/udp", inet.UDP, stateUnconnected},
	{"/proc/thread-self/net/udp6", inet.UDP, stateUnconnected},
}

// The states of sockets that receive from any peer.
const (
	stateListen      = "0A"
	stateUnconnected = "07"
)

// Listeners lists the addresses and ports on which processes of this node receive TCP connections and UDP datagrams. On error, it
// returns none.
func (b *Backend) Listeners() (kernel.Listeners, error) {
	listeners := kernel.Listeners{}
	for _, table := range socketTables {
		file, err := os.Open(table.file)
		if errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the sockets of this node: %w", err)
		}
		err = addListeners(listeners, file, table.protocol, table.state)
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("list the sockets of this node: %s: %w", table.file, err)
		}
	}
	return listeners, nil
}

func addListeners(listeners kernel.Listeners, table io.Reader, protocol inet.Protocol, state string) error {
	lines := bufio.NewScanner(table)
	lines.Scan() // the header line
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 4 {
			return fmt.Errorf("line %q", lines.Text())
		}
		if string(fields[3]) != state {
			continue
		}
		at, err := parseSocketAddress(fields[1])
		if err != nil {
			return err
		}
		listeners[kernel.ServerKey{Addr: at, Protocol: protocol}] = struct{}{}
	}
	return lines.Err()
}

func parseSocketAddress(b []byte) (netip.AddrPort, error) {
	words, port, _ := bytes.Cut(b, []byte(":"))
	raw, err := hex.AppendDecode(nil, words)
	number, err2 := strconv.ParseUint(string(port), 16, 16)
	if err := errors.Join(err, err2); err != nil {
		return netip.AddrPort{}, fmt.Errorf("socket address %q: %w", b, err)
	}
	for i := 0; i+4 <= len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("socket address %q: %d bytes", b, len(raw))
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}
