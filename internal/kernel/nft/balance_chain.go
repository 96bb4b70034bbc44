package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Balancing has two look-ups: the map of frontends leads to a chain, and the map of slots gives that chain a random endpoint. Frontends
// with the same number of slots share a chain, so the number of chains does not depend on the number of Services. Only a frontend with
// affinity has its own chains.
//
// The names of these chains do not end like those of chains for rules (see parseChain).

// frontendsMap is the map from each frontend to its chain.
func frontendsMap(f inet.Family) string { return fmt.Sprintf("frontends%d", f) }

// slotsMap is the map from a frontend and a slot number to an endpoint.
func slotsMap(f inet.Family) string { return fmt.Sprintf("slots%d", f) }

// recordMap is the map from each frontend with affinity to the chain that records its clients. Other frontends return (see recordChain).
func recordMap(f inet.Family) string { return fmt.Sprintf("record%d", f) }

// balanceChain is the chain to which rules send the packets of frontends.
func balanceChain(f inet.Family) string { return fmt.Sprintf("balance%d", f) }

// chain is a chain for balancing.
type chain struct {
	name  string
	rules []rule
}

// rule is a rule of a chain for balancing. Its comment describes it. A chain is complete if the comments of its rules are the expected
// ones, in order.
type rule struct {
	comment string
	program []byte
}

func (c chain) comments() []string {
	all := make([]string, len(c.rules))
	for i, r := range c.rules {
		all[i] = r.comment
	}
	return all
}

// picker describes the chain that draws a random endpoint, for all frontends with this number of slots. With 0 slots, it refuses
// connections.
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

// affinity describes the chains of a frontend with session affinity, in which a client keeps its endpoint.
type affinity struct {
	key     kernel.ServerKey
	timeout uint32 // in seconds
	// mask is the length of the prefix that identifies a client.
	mask uint8
	// gone are removed endpoints that the client map may still have.
	gone []netip.AddrPort
	pick picker
}

func (k affinity) name() string {
	return "affinity" + strings.TrimPrefix(kernel.ClientsMap(k.key), clients)
}

// recordName is the chain that records the endpoint of a client. Another chain chooses the endpoint, because the translation ends that
// chain.
func (k affinity) recordName() string {
	return "record" + strings.TrimPrefix(kernel.ClientsMap(k.key), clients)
}

// clients is the prefix of the names of client maps.
const clients = "clients"

// maxClients is the size of a client map. Further clients get random endpoints.
const maxClients = 1 << 16

// The registers hold a key, from the first one on: address, protocol, port, and then a slot number or an endpoint.
func (e *expressions) words() uint32 { return addressBytes(e.family) / 4 }
func (e *expressions) third() uint32 { return firstKeyField + e.words() + 2 }

// chosen is the register of the chosen endpoint. It comes after the largest key.
func (e *expressions) chosen() uint32 { return firstKeyField + 2*e.words() + 3 }

func (e *expressions) frontend(allPorts bool) {
	e.destination(firstKeyField)
	e.meta(unix.NFT_META_L4PROTO, firstKeyField+e.words())
	port := firstKeyField + e.words() + 1
	if !allPorts {
		e.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, port)
		return
	}
	e.zero(port)
}

func (e *expressions) zero(to uint32) {
	e.add("immediate", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_IMMEDIATE_DREG, to)
		return appendData(b, unix.NFTA_IMMEDIATE_DATA, make([]byte, 4))
	})
}

// find looks the key up in a map and loads the result. If the map does not have the key, the packet continues with the next rule.
func (e *expressions) find(in string, into uint32) {
	e.add("lookup", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_LOOKUP_SET, in)
		b = appendBigUint32(b, unix.NFTA_LOOKUP_SREG, firstKeyField)
		return appendBigUint32(b, unix.NFTA_LOOKUP_DREG, into)
	})
}

// chose matches if the chosen endpoint has this address. It does not compare the port, because nft cannot print that.
func (e *expressions) chose(a netip.Addr) { e.compareAt(e.chosen(), unix.NFT_CMP_EQ, a.AsSlice()) }

// client loads the prefix of the source address that identifies a client.
func (e *expressions) client(mask uint8) {
	e.source(firstKeyField)
	if int(mask) == e.family.Bits() {
		return
	}
	e.add("bitwise", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_BITWISE_SREG, firstKeyField)
		b = appendBigUint32(b, unix.NFTA_BITWISE_DREG, firstKeyField)
		b = appendBigUint32(b, unix.NFTA_BITWISE_LEN, addressBytes(e.family))
		b = appendData(b, unix.NFTA_BITWISE_MASK, prefixMask(e.family, int(mask)))
		return appendData(b, unix.NFTA_BITWISE_XOR, make([]byte, addressBytes(e.family)))
	})
}

func (e *expressions) random(below int) {
	e.add("numgen", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_NG_DREG, e.third())
		b = appendBigUint32(b, unix.NFTA_NG_MODULUS, uint32(below))
		return appendBigUint32(b, unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM)
	})
}

func (e *expressions) translate(keepPort bool) {
	e.add("nat", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		b = appendBigUint32(b, unix.NFTA_NAT_FAMILY, uint32(nfproto(e.family)))
		b = appendBigUint32(b, unix.NFTA_NAT_REG_ADDR_MIN, e.chosen())
		if !keepPort {
			b = appendBigUint32(b, unix.NFTA_NAT_REG_PROTO_MIN, e.chosen()+e.words())
		}
		return b
	})
}

func (e *expressions) choose(p picker) {
	e.frontend(p.allPorts)
	e.random(p.slots)
	e.find(slotsMap(e.family), e.chosen())
}

func (e *expressions) goTo(chain string) {
	e.add("immediate", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		return nlbatch.AppendNest(b, unix.NFTA_IMMEDIATE_DATA, func(b []byte) []byte { return appendVerdict(b, unix.NFT_GOTO, chain) })
	})
}

func (p picker) chain() chain {
	e := &expressions{family: p.family}
	if p.slots == 0 {
		// IPVS also refuses a connection if the virtual server has no destination for it.
		_ = e.reject(map[inet.Family]kernel.Reject{inet.IPv4: kernel.PortUnreachable, inet.IPv6: kernel.PortUnreachable6}[p.family])
		return chain{p.name(), []rule{{"no endpoint takes connections", e.b}}}
	}
	e.choose(p)
	e.translate(p.allPorts)
	drop := &expressions{family: p.family}
	_ = drop.verdict(kernel.Drop)
	return chain{p.name(), []rule{
		{fmt.Sprintf("one of %d endpoints, at random", p.slots), e.b},
		{"never to this node's own programs", drop.b},
	}}
}

// chains returns the two chains. One rule for each removed endpoint sends its clients to a random one: nftables can neither look up the
// result of a map nor replace the data of an element. Later, the agent deletes the elements and then these rules. No rule computes with the
// result of a map, because nft cannot print that.
func (k affinity) chains() []chain {
	keep := chain{name: k.name()}
	for _, a := range k.gone {
		e := k.known()
		e.chose(a.Addr())
		e.goTo(k.pick.name())
		keep.rules = append(keep.rules, rule{goneComment(a), e.b})
	}
	stay := k.known()
	stay.translate(k.pick.allPorts)
	pick := &expressions{family: k.key.Family()}
	pick.goTo(k.pick.name())
	of := fmt.Sprintf("%d bits, %d s", k.mask, k.timeout)
	keep.rules = append(keep.rules, rule{"a known client, by " + of, stay.b}, rule{fmt.Sprintf("another, to one of %d slots", k.pick.slots), pick.b})

	note := &expressions{family: k.key.Family()}
	note.client(k.mask)
	note.remember(k)
	return []chain{{k.recordName(), []rule{{"a client, by " + of, note.b}}}, keep}
}

// known matches clients that the map has, and loads their endpoints.
func (k affinity) known() *expressions {
	e := &expressions{family: k.key.Family()}
	e.client(k.mask)
	e.find(kernel.ClientsMap(k.key), e.chosen())
	return e
}

// remember records the translated destination for the client, or extends the timeout of its record. A full map takes no new clients.
func (e *expressions) remember(k affinity) {
	e.destination(e.chosen())
	e.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, e.chosen()+e.words())
	e.add("dynset", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_DYNSET_SET_NAME, kernel.ClientsMap(k.key))
		b = appendBigUint32(b, unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
		b = appendBigUint32(b, unix.NFTA_DYNSET_SREG_KEY, firstKeyField)
		b = appendBigUint32(b, unix.NFTA_DYNSET_SREG_DATA, e.chosen())
		return appendBigUint64(b, unix.NFTA_DYNSET_TIMEOUT, uint64(k.timeout)*1000)
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

// requests creates the chain or replaces its rules. They must be in one transaction.
func (c chain) requests() []nlbatch.Request {
	reqs := []nlbatch.Request{newChain(c.name), flushChain(c.name)}
	for _, r := range c.rules {
		b := rulesOf(c.name)
		b = nlbatch.AppendAttr(b, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, r.program)
		b = nlbatch.AppendAttr(b, unix.NFTA_RULE_USERDATA, comment(r.comment))
		reqs = append(reqs, request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, b))
	}
	return reqs
}

// entrance returns the chain that looks frontends up: first the frontend of the port, then the one of all ports.
func entrance(f inet.Family) chain {
	c := chain{name: balanceChain(f)}
	for _, allPorts := range []bool{false, true} {
		e, what := &expressions{family: f}, "the frontend of this port"
		if allPorts {
			what = "the frontend of all ports"
		}
		e.frontend(allPorts)
		e.find(frontendsMap(f), unix.NFT_REG_VERDICT)
		c.rules = append(c.rules, rule{what, e.b})
	}
	return c
}

// recordingChains returns the base chains after the translation. They look up the frontend to which a connection was opened.
func recordingChains(f inet.Family) (chains []baseChain) {
	const confirmed, dnat = 1 << 3, 1 << 5
	for _, h := range []struct {
		name   string
		number uint32
	}{{"prerouting", unix.NF_INET_PRE_ROUTING}, {"output", unix.NF_INET_LOCAL_OUT}} {
		c := baseChain{chain{name: fmt.Sprintf("record%d-%s", f, h.name)}, hook{"filter", h.number, -99}}
		for _, allPorts := range []bool{false, true} {
			e := &expressions{family: f}
			e.meta(unix.NFT_META_NFPROTO, register)
			e.compare(unix.NFT_CMP_EQ, []byte{nfproto(f)})
			e.ct(unix.NFT_CT_STATUS, register) // only the first packet: a later one may be for a removed endpoint
			e.bitwise(native(confirmed|dnat), native(0))
			e.compare(unix.NFT_CMP_EQ, native(dnat))
			e.ctOriginal(map[inet.Family]uint32{inet.IPv4: unix.NFT_CT_DST_IP, inet.IPv6: unix.NFT_CT_DST_IP6}[f], firstKeyField)
			e.meta(unix.NFT_META_L4PROTO, firstKeyField+e.words())
			if port := firstKeyField + e.words() + 1; allPorts {
				e.zero(port)
			} else {
				e.ctOriginal(unix.NFT_CT_PROTO_DST, port)
			}
			e.find(recordMap(f), unix.NFT_REG_VERDICT)
			c.rules = append(c.rules, rule{fmt.Sprintf("a new connection, all ports: %t", allPorts), e.b})
		}
		chains = append(chains, c)
	}
	return chains
}

type baseChain struct {
	chain
	hook hook
}

func (c baseChain) requests() []nlbatch.Request {
	return append([]nlbatch.Request{newBaseChain(c.name, c.hook)}, c.chain.requests()[1:]...)
}

func (e *expressions) ctOriginal(key, to uint32) {
	e.add("ct", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_CT_DREG, to)
		b = appendBigUint32(b, unix.NFTA_CT_KEY, key)
		return nlbatch.AppendAttr(b, unix.NFTA_CT_DIRECTION, []byte{0})
	})
}

// shared has the chains that all frontends need.
var shared = map[inet.Family][]chain{inet.IPv4: sharedChains(inet.IPv4), inet.IPv6: sharedChains(inet.IPv6)}

func sharedChains(f inet.Family) []chain {
	all := []chain{entrance(f)}
	for _, c := range recordingChains(f) {
		all = append(all, c.chain)
	}
	return all
}

func isShared(f inet.Family, name string) bool {
	return slices.ContainsFunc(shared[f], func(c chain) bool { return c.name == name })
}

// familyOf returns the family of a chain for rules, or of a chain that all frontends share.
func familyOf(name string) inet.Family {
	if f, _, ok := parseChain(name); ok {
		return f
	}
	i := slices.IndexFunc(inet.Families, func(f inet.Family) bool { return isShared(f, name) })
	if i < 0 {
		return 0
	}
	return inet.Families[i]
}
