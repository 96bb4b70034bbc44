package kernel

import (
	"fmt"
	"slices"
)

// Mode describes what balances connections on a node, and where the agent keeps sets and rules.
type Mode uint8

// The modes. If nftables balances connections, sets and rules are also in nftables, because only rules in the same
// table can send packets to the balancing chains.
const (
	IPVSWithIPTables Mode = iota // sets are in ipset, rules in iptables
	IPVSWithNFTables
	NFTablesOnly
	Userspace // the agent's process balances, and keeps nothing in the kernel
)

var modes = []string{"ipvs-iptables", "ipvs-nftables", "nftables", "userspace"}

// AtRandom is what commands show as the scheduler where nftables balances: it has only one. The virtual servers there keep the name of the
// scheduler that IPVS would have, for a move to IPVS.
const AtRandom = "random"

// NFTablesBalances reports whether nftables balances connections. Otherwise IPVS does, or the agent's process.
func (m Mode) NFTablesBalances() bool { return m == NFTablesOnly }

// IPVSBalances reports whether IPVS balances connections.
func (m Mode) IPVSBalances() bool { return m == IPVSWithIPTables || m == IPVSWithNFTables }

// RulesInNFTables reports whether sets and rules are in nftables. Otherwise they are in ipset and iptables.
func (m Mode) RulesInNFTables() bool { return m == IPVSWithNFTables || m == NFTablesOnly }

// DataPlane returns what balances connections: DataPlaneIPVS, DataPlaneNFTables or DataPlaneUserspace.
func (m Mode) DataPlane() string {
	switch m {
	case NFTablesOnly:
		return DataPlaneNFTables
	case Userspace:
		return DataPlaneUserspace
	}
	return DataPlaneIPVS
}

// Rules returns where sets and rules are kept: RulesIPTables, RulesNFTables or RulesNone.
func (m Mode) Rules() string {
	switch {
	case m == Userspace:
		return RulesNone
	case m.RulesInNFTables():
		return RulesNFTables
	}
	return RulesIPTables
}

func (m Mode) String() string { return modes[m] }

// MarshalText returns the name of the mode.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText accepts the names of modes.
func (m *Mode) UnmarshalText(text []byte) error {
	i := slices.Index(modes, string(text))
	if i < 0 {
		return fmt.Errorf("unknown mode %q", text)
	}
	*m = Mode(i)
	return nil
}
