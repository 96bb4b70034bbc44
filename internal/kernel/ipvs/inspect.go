package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Table is all that IPVS tells of a namespace to somebody who wants to look at it: more than the agent needs, and in the
// kernel's order. What the agent compares is kernel.ObservedServer.
type Table struct {
	Info     Info
	Services []TableService
}

// Info is the version of IPVS, one byte each for major, minor and patch, and the size of its connection table.
type Info struct {
	Version  uint32
	ConnSize uint32
}

// TableKey names a virtual server: by mark and family when Mark is not 0, else by protocol and address.
type TableKey struct {
	Family   inet.Family
	Protocol inet.Protocol
	Addr     netip.AddrPort
	Mark     uint32
}

// TableService is a virtual server.
type TableService struct {
	Key       TableKey
	Scheduler string
	Flags     uint32 // kernel.Flag..., and the kernel's own
	Timeout   uint32 // seconds; means something with kernel.FlagPersistent
	// Netmask groups the clients of a persistent service: for IPv4 a mask in host order, for IPv6 a prefix length.
	Netmask      uint32
	Engine       string // of persistence
	Stats        Counters
	Destinations []TableDestination
}

// TableDestination is a destination of a virtual server.
type TableDestination struct {
	Addr       netip.AddrPort
	Forwarding kernel.Forwarding
	Weight     uint32

	UpperThreshold, LowerThreshold uint32
	Active, Inactive, Persistent   uint32

	Tunnel Tunnel
	Stats  Counters
}

// Tunnel says how packets to a destination are wrapped; it means something with kernel.ForwardTunnel.
type Tunnel struct {
	Type  uint8
	Port  uint16
	Flags uint16
}

// The kinds of tunnel, and their flags. Without a flag there is no checksum.
const (
	TunnelIPIP uint8 = 0
	TunnelGUE  uint8 = 1
	TunnelGRE  uint8 = 2

	TunnelChecksum       uint16 = 1
	TunnelRemoteChecksum uint16 = 2
)

// Counters count what passed since the last reset; the rates are per second, as the kernel estimates them.
type Counters struct {
	Connections, InPackets, OutPackets, InBytes, OutBytes                uint64
	ConnectionRate, InPacketRate, OutPacketRate, InByteRate, OutByteRate uint64
}

// Inspect reads everything.
func (b *Backend) Inspect(ctx context.Context) (Table, error) {
	info, err := b.info(ctx)
	if err != nil {
		return Table{}, fmt.Errorf("inspect IPVS: %w", err)
	}
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetService, nil))
	if err != nil {
		return Table{}, fmt.Errorf("inspect IPVS: dump virtual servers: %w", err)
	}
	table := Table{Info: info, Services: make([]TableService, len(payloads))}
	for i, p := range payloads {
		if table.Services[i], err = b.inspectService(ctx, p); err != nil {
			return Table{}, fmt.Errorf("inspect IPVS: %w", err)
		}
	}
	return table, nil
}

// InspectOne reads one virtual server. The second result is false when there is none.
func (b *Backend) InspectOne(ctx context.Context, key TableKey) (TableService, bool, error) {
	answers, errs := b.conn.Get(ctx, []nlbatch.Request{b.request(cmdGetService, encodeTableKey(key))})
	if errors.Is(errs[0], unix.ESRCH) {
		return TableService{}, false, nil
	}
	if errs[0] != nil {
		return TableService{}, false, fmt.Errorf("inspect virtual server: %w", errs[0])
	}
	if len(answers[0]) != 1 {
		return TableService{}, false, fmt.Errorf("inspect virtual server: %d answers instead of one", len(answers[0]))
	}
	service, err := b.inspectService(ctx, answers[0][0].Payload)
	if err != nil {
		return TableService{}, false, fmt.Errorf("inspect virtual server: %w", err)
	}
	return service, true, nil
}

// inspectService decodes a virtual server and reads its destinations. One that was deleted meanwhile has none.
func (b *Backend) inspectService(ctx context.Context, payload []byte) (TableService, error) {
	service, err := decodeTableService(payload)
	if err != nil {
		return TableService{}, err
	}
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetDest, encodeTableKey(service.Key)))
	if err != nil {
		return TableService{}, fmt.Errorf("dump destinations: %w", err)
	}
	service.Destinations = make([]TableDestination, len(payloads))
	for i, p := range payloads {
		if service.Destinations[i], err = decodeTableDestination(p, service.Key.Family); err != nil {
			return TableService{}, err
		}
	}
	return service, nil
}
