package kernel

import (
	"fmt"
	"slices"
)

// Mode describes what balances connections on a node, and where the agent keeps sets and rules.
type Mode uint8

// The modes. nftables balances only packets that pass rules of the agent's table, so that table then also contains the sets and rules.
const (
	IPVSWithIPTables Mode = iota // sets are in ipset, rules in iptables
	IPVSWithNFTables
	NFTablesOnly
)

var modes = []string{"ipvs-iptables", "ipvs-nftables", "nftables"}

// NFTablesBalances reports whether nftables balances connections. Otherwise IPVS does.
func (m Mode) NFTablesBalances() bool { return m == NFTablesOnly }

// RulesInNFTables reports whether sets and rules are in nftables. Otherwise they are in ipset and iptables.
func (m Mode) RulesInNFTables() bool { return m != IPVSWithIPTables }

// DataPlane returns what balances connections: DataPlaneIPVS or DataPlaneNFTables.
func (m Mode) DataPlane() string {
	if m.NFTablesBalances() {
		return DataPlaneNFTables
	}
	return DataPlaneIPVS
}

// Rules returns where sets and rules are kept: RulesIPTables or RulesNFTables.
func (m Mode) Rules() string {
	if m.RulesInNFTables() {
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
