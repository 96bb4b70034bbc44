package kernel

import (
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Table is everything that the kernel reports about IPVS in a network namespace, in the kernel's order, as ipvsadm lists it. The agent
// compares only the part in State.Servers.
type Table struct {
	Info    TableInfo
	Servers []TableServer
}

// TableInfo contains the version of IPVS (one byte each for major, minor and patch) and the size of its connection
// table.
type TableInfo struct {
	Version  uint32
	ConnSize uint32
}

// TableKey identifies a virtual server: by firewall mark and family if Mark is not 0, otherwise by protocol and address.
type TableKey struct {
	Family   inet.Family
	Protocol inet.Protocol
	Addr     netip.AddrPort
	Mark     uint32
}

// TableServer is a virtual server.
type TableServer struct {
	Key       TableKey
	Scheduler string
	Flags     uint32 // the Flag constants, and flags that the kernel sets
	Timeout   uint32 // in seconds; valid only with FlagPersistent
	// Netmask groups the clients of a persistent virtual server. It is a mask in host byte order for IPv4, and a prefix length
	// for IPv6.
	Netmask      uint32
	Engine       string // persistence engine, such as sip
	Stats        Counters
	Destinations []TableDestination
}

// TableDestination is a destination of a virtual server.
type TableDestination struct {
	Addr       netip.AddrPort
	Forwarding Forwarding
	Weight     uint32

	UpperThreshold, LowerThreshold uint32
	Active, Inactive, Persistent   uint32

	Tunnel Tunnel
	Stats  Counters
}

// Tunnel is the encapsulation of packets to a destination; valid only with ForwardTunnel.
type Tunnel struct {
	Type  uint8
	Port  uint16
	Flags uint16
}

// The tunnel types and the checksum flags. Without a flag, packets have no checksum.
const (
	TunnelIPIP uint8 = 0
	TunnelGUE  uint8 = 1
	TunnelGRE  uint8 = 2

	TunnelChecksum       uint16 = 1
	TunnelRemoteChecksum uint16 = 2
)

// Counters contains counts since the last reset. The rates are the kernel's estimates, per second.
type Counters struct {
	Connections, InPackets, OutPackets, InBytes, OutBytes                uint64
	ConnectionRate, InPacketRate, OutPacketRate, InByteRate, OutByteRate uint64
}

// Traffic counts the traffic of a virtual server since its creation.
type Traffic struct {
	Counters
	// Endpoints contains the virtual server's destinations; nil unless requested.
	Endpoints map[netip.AddrPort]TableDestination
}

// Connection is an entry of the IPVS connection table. A persistence template has client port 0.
type Connection struct {
	Protocol                     string // the kernel's name
	Client, Virtual, Destination netip.AddrPort
	State                        string
	Expires                      uint64 // in seconds
	Engine, EngineData           string // of persistence
}

// Seconds rounds up, because 0 means that a connection does not expire.
func Seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

// DaemonState is the role of a synchronization daemon.
type DaemonState uint32

// A namespace has at most one daemon in each role.
const (
	DaemonMaster DaemonState = 1
	DaemonBackup DaemonState = 2
)

// Daemon is a kernel thread that sends connections to other nodes, or receives connections from them.
type Daemon struct {
	State     DaemonState
	Interface string
	SyncID    uint32
	MaxLen    uint16
	Group     netip.Addr
	Port      uint16
	TTL       uint8
}
