package kernel

import "fmt"

// NFTables contains the nftables tables of other programs: the rules of each chain, and the sets that the rules use.
type NFTables struct {
	Rules map[NFTName][]NFTRule
	Sets  map[NFTName]NFTSet
}

// NFTName names a chain or a set of a table.
type NFTName struct{ Family, Table, Name string }

// In returns the name of another chain or set of the same table.
func (n NFTName) In(name string) NFTName { return NFTName{n.Family, n.Table, name} }

// Chain returns the name of a base chain.
func (c BaseChain) Chain() NFTName { return NFTName{c.Family, c.Table, c.Name} }

// NFTRule is a rule. Its statements run in order until one of them does not match, or issues a verdict.
type NFTRule struct {
	Handle     uint64
	Statements []NFTStatement
}

// Show returns the command that shows a rule of a chain.
func (r NFTRule) Show(at NFTName) string {
	return fmt.Sprintf("nft -a list chain %s %s %s # handle %d", at.Family, at.Table, at.Name, r.Handle)
}

// NFTStatement is one of the kernel's expressions, as linux/netfilter/nf_tables.h describes them. A register's number is the index
// of its first 4-byte word.
type NFTStatement interface{ statement() }

// The kinds of fields.
const (
	NFTMeta    = "meta"
	NFTPayload = "payload"
	NFTCt      = "ct"
	NFTFib     = "fib"
)

// NFTField is a property of a packet.
type NFTField struct {
	// Kind is the name of the expression that loads the field. For kinds without a constant above, the other fields are zero.
	Kind string
	// Key is the key of meta and ct, the base of payload, and the result of fib.
	Key uint32
	// Offset and Length are in bytes. Length is 0 if the key determines it.
	Offset, Length int
	// Flags are the flags of fib. If Directed is true, Reply is the direction of ct.
	Flags           uint32
	Directed, Reply bool
}

// NFTLoad stores a field in a register.
type NFTLoad struct {
	To    int
	Field NFTField
}

// NFTStore sets the packet's field to the value of a register.
type NFTStore struct {
	From  int
	Field NFTField
}

// NFTImmediate stores a constant in a register.
type NFTImmediate struct {
	To   int
	Data []byte
}

// NFTBitwise masks and inverts bits of a register. Without a mask, the statement is another operation on the bits.
type NFTBitwise struct {
	From, To, Length int
	Mask, Xor        []byte
}

// NFTByteOrder reverses the bytes of each number in a register. A number has Size bytes.
type NFTByteOrder struct{ From, To, Length, Size int }

// NFTCompare compares a register with a constant; Op is NFT_CMP_EQ or another NFT_CMP code.
type NFTCompare struct {
	From int
	Op   uint32
	Data []byte
}

// NFTRange matches if a register is between two constants; with Not, if it is not.
type NFTRange struct {
	From      int
	Low, High []byte
	Not       bool
}

// NFTLookup looks a register up in a set. With a map, it stores the value in another register, or applies the map's verdict.
type NFTLookup struct {
	Set      string
	From, To int
	Map, Not bool
}

// NFTVerdict ends the chain, or continues in another chain. Code is NF_DROP, NFT_JUMP or another verdict code.
type NFTVerdict struct {
	Code  int32
	Chain string
}

// NFTAction has an effect on the packet: "reject", "dnat", "redir", "tproxy", "notrack", "queue" or another kernel name.
type NFTAction struct{ Name string }

// NFTSourceNAT changes the source of the connection. Addresses and Ports are the registers with the first and the last value; -1 for none.
// Masquerade is true if the address is one of the node's.
type NFTSourceNAT struct {
	Addresses, Ports [2]int
	Masquerade       bool
}

// NFTOpaque is a match that depends on more than the packet, such as a rate, in nft's syntax.
type NFTOpaque struct{ Text string }

func (NFTLoad) statement()      {}
func (NFTStore) statement()     {}
func (NFTImmediate) statement() {}
func (NFTBitwise) statement()   {}
func (NFTByteOrder) statement() {}
func (NFTCompare) statement()   {}
func (NFTRange) statement()     {}
func (NFTLookup) statement()    {}
func (NFTVerdict) statement()   {}
func (NFTAction) statement()    {}
func (NFTSourceNAT) statement() {}
func (NFTOpaque) statement()    {}

// The codes of verdicts and comparisons.
const (
	NFTDrop     = 0
	NFTAccept   = 1
	NFTQueue    = 3
	NFTContinue = -1
	NFTBreak    = -2
	NFTJump     = -3
	NFTGoto     = -4
	NFTReturn   = -5

	NFTEqual        = 0
	NFTNotEqual     = 1
	NFTLess         = 2
	NFTLessEqual    = 3
	NFTGreater      = 4
	NFTGreaterEqual = 5
)

// NFTSet is a set or a map.
type NFTSet struct {
	// Fields are the lengths of the parts of a key in bytes; each begins at a multiple of 4.
	Fields []int
	// Unread is the reason why the elements are unknown; empty if they are known.
	Unread   string
	Elements []NFTElement
}

// NFTElement contains all keys from Key to End, compared field by field. A catch-all element has no key: it contains all keys that are in no other element.
type NFTElement struct {
	Key, End []byte
	// In a map, Data or Verdict is the value of the element.
	Data    []byte
	Verdict NFTVerdict
	// Opaque is an additional condition, such as a rate.
	Opaque string
}
