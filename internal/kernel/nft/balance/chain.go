package balance

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Balancing requires three lookups: the number of slots of the frontend, the chain for that number, and in that chain a random slot, which
// contains an endpoint. Frontends with the same number of slots share a chain, so the number of chains does not depend on the number of
// Services. Only a frontend with affinity has its own chains; it is not in the map of numbers, but in a map that leads to its chain.
//
// The map of numbers has no verdicts, although verdicts would save a lookup: if a transaction adds an element that leads to a chain, the
// kernel checks all elements of all such maps for loops, once for each path to the map.
//
// The names of these chains do not end with -4 or -6, unlike the names of chains for rules.

// sharedMapNames contains the names of the maps that all frontends share. The first two contain each frontend once.
var sharedMapNames = map[inet.Family][]string{
	inet.IPv4: {"slot-numbers4", "frontends4", "slots4", "record4", "pickers4"}, inet.IPv6: {"slot-numbers6", "frontends6", "slots6", "record6", "pickers6"},
}

// numbersMap returns the name of the map from each frontend without affinity to its number of slots.
func numbersMap(f inet.Family) string { return sharedMapNames[f][0] }

// pickersMap returns the name of the map from numbers of slots to chains.
func pickersMap(f inet.Family) string { return sharedMapNames[f][4] }

// frontendsMap returns the name of the map from each frontend with affinity to its chain.
func frontendsMap(f inet.Family) string { return sharedMapNames[f][1] }

// slotsMap returns the name of the map from a frontend and a slot number to an endpoint.
func slotsMap(f inet.Family) string { return sharedMapNames[f][2] }

// recordMap returns the name of the map from each frontend with affinity to the chain that records its clients. For some other frontends,
// the map contains the verdict "return" (see recordChain).
func recordMap(f inet.Family) string { return sharedMapNames[f][3] }

// Entrance returns the name of the chain to which rules send packets to frontends.
func Entrance(f inet.Family) string { return fmt.Sprintf("balance%d", f) }

// Chain is a chain for balancing. Its hook is zero unless it is a base chain.
type Chain struct {
	Name  string
	Hook  wire.Hook
	rules []rule
	// from is the element of the map of pickers that leads to the chain, if any.
	from *entry
}

// led stands for the element that leads to a chain, after the comments of the chain's rules.
const led = "an element leads to this chain"

// bySlots begins the comments of rules that look up the number of slots.
const bySlots = "slots of "

// old returns the comments that version 0.1.0 wrote into a chain that now has these comments.
func old(comments []string) []string {
	return slices.DeleteFunc(slices.Clone(comments), func(text string) bool { return text == led || strings.HasPrefix(text, bySlots) })
}

// rule is a rule of a chain for balancing. A chain is complete if its rules have the expected comments, in order.
type rule struct {
	comment string
	program []byte
}

func (c Chain) comments() []string {
	all := make([]string, len(c.rules))
	for i, r := range c.rules {
		all[i] = r.comment
	}
	if c.from != nil {
		all = append(all, led)
	}
	return all
}

// picker describes the chain that picks a random endpoint, for all frontends with this number of slots. With 0
// slots, it refuses connections.
type picker struct {
	family inet.Family
	slots  int
	// allPorts is true for all-ports servers: the packet keeps its destination port.
	allPorts bool
}

func (p picker) name() string {
	name := "pick"
	if p.allPorts {
		name = "all-ports"
	}
	return fmt.Sprintf("%s%d.%d", name, p.family, p.slots)
}

// number is the value that leads to the chain.
func (p picker) number() uint32 {
	if p.allPorts {
		return uint32(p.slots) | 1<<30
	}
	return uint32(p.slots)
}

// numberValue is the value of a frontend with this number. Versions of nft abort if a rule looks up the first register of another lookup's
// result. The number is therefore in the second register, which nft takes for what it contained before: nft shows the packet's mark there.
func numberValue(number uint32) string {
	return string(append(wire.Native(0), wire.Native(number)...))
}

// entry is the element that leads to the chain.
func (p picker) entry() *entry {
	return &entry{pickersMap(p.family), wire.Element{Key: string(wire.Native(p.number())), Chain: p.name()}}
}

// affinity describes the chains of a frontend with session affinity: each client keeps its endpoint.
type affinity struct {
	key     kernel.ServerKey
	timeout uint32 // in seconds
	// mask is the length of the prefix that identifies a client.
	mask uint8
	// gone lists removed endpoints that the client map may still contain.
	gone []netip.AddrPort
	pick picker
}

func (k affinity) name() string {
	return "affinity" + strings.TrimPrefix(kernel.ClientsMap(k.key), clients)
}

// recordName returns the name of the chain that records the endpoint of a client. The chain that chooses the endpoint
// cannot record it, because the translation ends that chain.
func (k affinity) recordName() string {
	return "record" + strings.TrimPrefix(kernel.ClientsMap(k.key), clients)
}

// clients is the prefix of the names of client maps.
const clients = "clients"

// maxClients is the size of a client map. If the map is full, new clients get random endpoints.
const maxClients = 1 << 16

type program struct{ wire.Program }

func newProgram(f inet.Family) *program { return &program{wire.Program{Family: f}} }

// The registers contain a key, starting with the first register: address, protocol, port, and then a slot number or an endpoint.
func (p *program) words() uint32 { return wire.Address(p.Family).Length / 4 }
func (p *program) third() uint32 { return wire.FirstKeyField + p.words() + 2 }

// chosen is the register of the chosen endpoint. It follows the largest key.
func (p *program) chosen() uint32 { return wire.FirstKeyField + 2*p.words() + 3 }

func (p *program) frontend(allPorts bool) {
	p.Destination(wire.FirstKeyField)
	p.Meta(unix.NFT_META_L4PROTO, wire.FirstKeyField+p.words())
	port := wire.FirstKeyField + p.words() + 1
	if !allPorts {
		p.Port(port)
		return
	}
	p.zero(port)
}

func (p *program) zero(to uint32) { p.Load(make([]byte, 4), to) }

// find looks the key up in a map and loads the result. If the map does not contain the key, the packet continues with the next rule.
func (p *program) find(in string, into uint32) { p.lookup(in, wire.FirstKeyField, into) }

func (p *program) lookup(in string, key, into uint32) {
	p.Add("lookup", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_LOOKUP_SET, in)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_LOOKUP_SREG, key)
		return nlbatch.AppendBigUint32(b, unix.NFTA_LOOKUP_DREG, into)
	})
}

// chose matches if the chosen endpoint has this address. It does not compare the port, because nft cannot print such a comparison.
func (p *program) chose(a netip.Addr) { p.Compare(p.chosen(), unix.NFT_CMP_EQ, a.AsSlice()) }

func (p *program) client(mask uint8) {
	p.Source(wire.FirstKeyField)
	if int(mask) != p.Family.Bits() {
		p.KeepBits(int(mask), wire.FirstKeyField)
	}
}

func (p *program) random(below int) {
	p.Add("numgen", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_NG_DREG, p.third())
		b = nlbatch.AppendBigUint32(b, unix.NFTA_NG_MODULUS, uint32(below))
		return nlbatch.AppendBigUint32(b, unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)
	})
}

func (p *program) translate(keepPort bool) {
	port := p.chosen() + p.words()
	if keepPort {
		port = 0
	}
	p.Translate(p.chosen(), port)
}

func (p *program) choose(by picker) {
	p.frontend(by.allPorts)
	p.random(by.slots)
	p.find(slotsMap(p.Family), p.chosen())
}

func (p *program) goTo(chain string) { p.Immediate(unix.NFT_GOTO, chain) }

// portUnreachable contains codes of ICMP "destination unreachable" messages.
var portUnreachable = map[inet.Family]uint8{inet.IPv4: 3, inet.IPv6: 4}

func (p picker) chain() Chain {
	e, text := newProgram(p.family), p.comments()
	if p.slots == 0 {
		// Like IPVS, this refuses a connection if the virtual server has no destination for it.
		e.Reject(portUnreachable[p.family])
		return Chain{Name: p.name(), rules: []rule{{text[0], e.Bytes}}, from: p.entry()}
	}
	e.choose(p)
	e.translate(p.allPorts)
	drop := newProgram(p.family)
	drop.Immediate(wire.Drop, "")
	return Chain{Name: p.name(), rules: []rule{{text[0], e.Bytes}, {text[1], drop.Bytes}}, from: p.entry()}
}

// comments returns the comments of the chain. To build the chain takes longer, and a read compares the comments for every frontend.
func (p picker) comments() []string {
	if p.slots == 0 {
		return []string{"no endpoint takes connections", led}
	}
	return []string{fmt.Sprintf("one of %d endpoints, at random", p.slots), "never to this node's own programs", led}
}

// chains returns the chains of a frontend with affinity. One rule for each removed endpoint sends its clients to a random endpoint, because
// nftables can neither look up the result of a map nor replace the data of an element. Later, the agent deletes the elements and then these
// rules. No rule computes with the result of a map, because nft cannot print such a rule.
func (k affinity) chains() []Chain {
	keep := Chain{Name: k.name()}
	for _, a := range k.gone {
		e := k.known()
		e.chose(a.Addr())
		e.goTo(k.pick.name())
		keep.rules = append(keep.rules, rule{goneComment(a), e.Bytes})
	}
	stay := k.known()
	stay.translate(k.pick.allPorts)
	pick := newProgram(k.key.Family())
	pick.goTo(k.pick.name())
	of := fmt.Sprintf("%d bits, %d s", k.mask, k.timeout)
	keep.rules = append(keep.rules, rule{"a known client, by " + of, stay.Bytes}, rule{fmt.Sprintf("another, to one of %d slots", k.pick.slots), pick.Bytes})

	note := newProgram(k.key.Family())
	note.client(k.mask)
	note.remember(k)
	return []Chain{{Name: k.recordName(), rules: []rule{{"a client, by " + of, note.Bytes}}}, keep}
}

// known matches clients in the map, and loads their endpoints.
func (k affinity) known() *program {
	e := newProgram(k.key.Family())
	e.client(k.mask)
	e.find(kernel.ClientsMap(k.key), e.chosen())
	return e
}

// remember records the translated destination for the client, or extends the timeout of its record. A full map accepts no new
// clients.
func (p *program) remember(k affinity) {
	p.Destination(p.chosen())
	p.Port(p.chosen() + p.words())
	p.Add("dynset", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_DYNSET_SET_NAME, kernel.ClientsMap(k.key))
		b = nlbatch.AppendBigUint32(b, unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_DYNSET_SREG_KEY, wire.FirstKeyField)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_DYNSET_SREG_DATA, p.chosen())
		return nlbatch.AppendAttr(b, unix.NFTA_DYNSET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(k.timeout)*1000))
	})
}

func goneComment(a netip.AddrPort) string { return fmt.Sprintf("a client of %s, which is gone", a) }

// goneIn reads the removed endpoints from the comments of a chain.
func goneIn(comments []string) (gone []netip.AddrPort) {
	for _, text := range comments {
		text, isClient := strings.CutPrefix(text, "a client of ")
		text, isGone := strings.CutSuffix(text, ", which is gone")
		if a, err := netip.ParseAddrPort(text); isClient && isGone && err == nil {
			gone = append(gone, a)
		}
	}
	return gone
}

// Requests creates the chain or replaces its rules. The requests must be in one transaction.
func (c Chain) Requests() []nlbatch.Request {
	name := wire.Chain(c.Name)
	reqs := []nlbatch.Request{name.Create(), name.Flush()}
	if c.Hook.Type != "" {
		reqs = []nlbatch.Request{name.CreateBase(c.Hook), name.Flush()}
	}
	for _, r := range c.rules {
		reqs = append(reqs, name.Append(r.program, r.comment))
	}
	if c.from != nil {
		reqs = append(reqs, entriesRequest(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, *c.from))
	}
	return reqs
}

// removal deletes chains and the elements that lead to them.
func (c comments) removal(names []string) (reqs []nlbatch.Request) {
	for _, name := range names {
		if p, picks := pickerOf(name); picks && slices.Contains(c[name], led) {
			reqs = append(reqs, entriesRequest(unix.NFT_MSG_DELSETELEM, 0, *p.entry()))
		}
	}
	return append(reqs, wire.RemoveChains(names)...)
}

// pickerOf is the inverse of picker.name.
func pickerOf(name string) (p picker, ok bool) {
	for _, format := range []string{"pick%d.%d", "all-ports%d.%d"} {
		if n, _ := fmt.Sscanf(name, format, &p.family, &p.slots); n == 2 {
			return p, p.name() == name
		}
		p.allPorts = true
	}
	return p, false
}

// entrance returns the chain that looks up frontends: first the frontend of the port, then the all-ports frontend.
func entrance(f inet.Family) Chain {
	c := Chain{Name: Entrance(f)}
	for _, allPorts := range []bool{false, true} {
		which := "the frontend of this port"
		if allPorts {
			which = "the frontend of all ports"
		}
		e, keep := newProgram(f), newProgram(f)
		e.frontend(allPorts)
		e.Meta(unix.NFT_META_MARK, e.chosen()+1) // see numberValue
		e.find(numbersMap(f), e.chosen())
		e.lookup(pickersMap(f), e.chosen()+1, unix.NFT_REG_VERDICT)
		keep.frontend(allPorts)
		keep.find(frontendsMap(f), unix.NFT_REG_VERDICT)
		c.rules = append(c.rules, rule{bySlots + which, e.Bytes}, rule{which, keep.Bytes})
	}
	return c
}

// BaseChains returns the base chains that packets traverse after the translation. They look up the frontend to which
// a connection was opened.
func BaseChains(f inet.Family) (chains []Chain) {
	const confirmed, dnat, original = 1 << 3, 1 << 5, 0
	for _, h := range []struct {
		name   string
		number uint32
	}{{"prerouting", unix.NF_INET_PRE_ROUTING}, {"output", unix.NF_INET_LOCAL_OUT}} {
		c := Chain{Name: fmt.Sprintf("record%d-%s", f, h.name), Hook: wire.Hook{Type: "filter", Number: h.number, Priority: -99}}
		for _, allPorts := range []bool{false, true} {
			p := newProgram(f)
			p.OfFamily()
			p.Conntrack(unix.NFT_CT_STATUS, wire.Register) // only the first packet: a later one may be for a removed endpoint
			p.Bitwise(wire.Register, wire.Native(confirmed|dnat), wire.Native(0))
			p.Compare(wire.Register, unix.NFT_CMP_EQ, wire.Native(dnat))
			p.Conntrack(map[inet.Family]uint32{inet.IPv4: unix.NFT_CT_DST_IP, inet.IPv6: unix.NFT_CT_DST_IP6}[f], wire.FirstKeyField, original)
			p.Meta(unix.NFT_META_L4PROTO, wire.FirstKeyField+p.words())
			if port := wire.FirstKeyField + p.words() + 1; allPorts {
				p.zero(port)
			} else {
				p.Conntrack(unix.NFT_CT_PROTO_DST, port, original)
			}
			p.find(recordMap(f), unix.NFT_REG_VERDICT)
			c.rules = append(c.rules, rule{fmt.Sprintf("a new connection, all ports: %t", allPorts), p.Bytes})
		}
		chains = append(chains, c)
	}
	return chains
}

var shared = map[inet.Family][]Chain{
	inet.IPv4: append(BaseChains(inet.IPv4), entrance(inet.IPv4)), inet.IPv6: append(BaseChains(inet.IPv6), entrance(inet.IPv6)),
}

var sharedComments = func() map[string][]string {
	all := map[string][]string{}
	for _, chains := range shared {
		for _, c := range chains {
			all[c.Name] = c.comments()
		}
	}
	return all
}()

func isShared(f inet.Family, name string) bool {
	return slices.ContainsFunc(shared[f], func(c Chain) bool { return c.Name == name })
}
