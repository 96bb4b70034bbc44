package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// connFile lists the connections of the calling thread's network namespace, in the order of the kernel's hash:
//
//	Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
//	TCP 0AF40102 DD0C 0A600050 0050 0AF40202 1F90 TIME_WAIT       117
//
// Addresses and ports are hexadecimal; IPv6 addresses have no brackets.
const connFile = "/proc/thread-self/net/ip_vs_conn"

// Connections lists the connections. A read may miss or repeat connections if the table changes during the read.
func Connections() ([]kernel.Connection, error) { return connections(math.MaxInt64) }

// sampleSize is the size of the part of the list that SomeConnections reads: some thousand connections.
const sampleSize = 1 << 20

// SomeConnections lists at least some of the connections. The kernel's hash decides which ones.
func SomeConnections() ([]kernel.Connection, error) { return connections(sampleSize) }

func connections(most int64) ([]kernel.Connection, error) {
	f, err := os.Open(connFile)
	if err != nil {
		return nil, fmt.Errorf("list IPVS connections: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, fmt.Errorf("list IPVS connections: %w", err)
	}
	if int64(len(text)) == most { // the last line may be incomplete
		text = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	conns, err := parseConns(text)
	if err != nil {
		return nil, fmt.Errorf("list IPVS connections: %s: %w", connFile, err)
	}
	return conns, nil
}

func parseConns(b []byte) ([]kernel.Connection, error) {
	_, b, _ = bytes.Cut(b, []byte("\n")) // the header line
	var conns []kernel.Connection
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		c, err := parseConn(line)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		conns = append(conns, c)
	}
	return conns, nil
}

// The fields of a line; only connections with a persistence engine have the last two.
const (
	connProtocol = iota
	connClient
	_
	connVirtual
	_
	connDestination
	_
	connState
	connExpires
	connFields
	connEngine = connExpires + 1
	connData   = connExpires + 2
)

func parseConn(line []byte) (kernel.Connection, error) {
	f := bytes.Fields(line)
	if len(f) < connFields {
		return kernel.Connection{}, errors.New("fields are missing")
	}
	c := kernel.Connection{Protocol: string(f[connProtocol]), State: string(f[connState])}
	var errs [4]error
	c.Client, errs[0] = parseConnAddress(f[connClient], f[connClient+1])
	c.Virtual, errs[1] = parseConnAddress(f[connVirtual], f[connVirtual+1])
	c.Destination, errs[2] = parseConnAddress(f[connDestination], f[connDestination+1])
	c.Expires, errs[3] = strconv.ParseUint(string(f[connExpires]), 10, 64)
	if len(f) > connData {
		c.Engine, c.EngineData = string(f[connEngine]), string(f[connData])
	}
	return c, errors.Join(errs[:]...)
}

func parseConnAddress(address, port []byte) (netip.AddrPort, error) {
	n, err := strconv.ParseUint(string(port), 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if bytes.IndexByte(address, ':') >= 0 {
		address = slices.Concat([]byte("["), address, []byte("]"))
	}
	addr, err := parseProcIP(address)
	return netip.AddrPortFrom(addr, uint16(n)), err
}
