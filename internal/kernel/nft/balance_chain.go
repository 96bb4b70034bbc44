package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Balancing is a look-up of the frontend in a map of chains, and of a random slot in a map of endpoints. The number of chains depends on
// how many slots and which affinity frontends have, not on the number of Services.
//
// No name of these chains ends as those of rules do, so that they are not taken for rules of iptables.

// frontsMap maps each frontend to its chain.
func frontsMap(f inet.Family) string { return fmt.Sprintf("fronts%d", f) }

// slotsMap maps a frontend and a number to an endpoint.
func slotsMap(f inet.Family) string { return fmt.Sprintf("slots%d", f) }

// sticksMap maps a frontend with affinity and a client to the client's endpoint.
func sticksMap(f inet.Family) string { return fmt.Sprintf("sticks%d", f) }

// endsSet has the endpoints of frontends with affinity that accept new connections.
func endsSet(f inet.Family) string { return fmt.Sprintf("ends%d", f) }

// balanceChain is where rules send packets that the agent balances.
func balanceChain(f inet.Family) string { return fmt.Sprintf("balance%d", f) }

// picker describes a chain that picks an endpoint.
type picker struct {
	family inet.Family
	// slots is the number of slots. A chain without slots refuses connections.
	slots int
	// timeout in seconds and mask of the session affinity; a timeout of 0 means none.
	timeout uint32
	mask    uint8
	// allPorts: the frontend is every port of an address, and the packet keeps its port.
	allPorts bool
}

func (p picker) name() string {
	name := "pick"
	if p.allPorts {
		name = "wide"
	}
	name = fmt.Sprintf("%s%d.%d", name, p.family, p.slots)
	if p.timeout > 0 && p.slots > 0 {
		name += fmt.Sprintf(".%ds.%dbits", p.timeout, p.mask)
	}
	return name
}

// The registers hold a key from the first one on: address, protocol, port, and then a number, a client or an endpoint.
func (e *expressions) words() uint32 { return addressBytes(e.family) / 4 }
func (e *expressions) third() uint32 { return firstKeyField + e.words() + 2 }

// chosen is the register of the endpoint, behind those of any key.
func (e *expressions) chosen() uint32 { return firstKeyField + 2*e.words() + 3 }

func (e *expressions) frontend(allPorts bool) {
	e.destination(firstKeyField)
	e.meta(unix.NFT_META_L4PROTO, firstKeyField+e.words())
	port := firstKeyField + e.words() + 1
	if !allPorts {
		e.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, port)
		return
	}
	e.add("immediate", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_IMMEDIATE_DREG, port)
		return appendData(b, unix.NFTA_IMMEDIATE_DATA, make([]byte, 4))
	})
}

// find looks the key up and stores what it finds, unless it is a set.
func (e *expressions) find(set string, into uint32, isMap bool) {
	e.add("lookup", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_LOOKUP_SET, set)
		b = appendBigUint32(b, unix.NFTA_LOOKUP_SREG, firstKeyField)
		if isMap {
			b = appendBigUint32(b, unix.NFTA_LOOKUP_DREG, into)
		}
		return b
	})
}

// client loads the part of the source that identifies a client.
func (e *expressions) client(mask uint8) {
	e.source(e.third())
	if int(mask) == e.family.Bits() {
		return
	}
	e.add("bitwise", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_BITWISE_SREG, e.third())
		b = appendBigUint32(b, unix.NFTA_BITWISE_DREG, e.third())
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

// remember records the chosen endpoint for the client, or prolongs the record.
func (e *expressions) remember(p picker) {
	e.add("dynset", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_DYNSET_SET_NAME, sticksMap(e.family))
		b = appendBigUint32(b, unix.NFTA_DYNSET_OP, unix.NFT_DYNSET_OP_UPDATE)
		b = appendBigUint32(b, unix.NFTA_DYNSET_SREG_KEY, firstKeyField)
		b = appendBigUint32(b, unix.NFTA_DYNSET_SREG_DATA, e.chosen())
		return appendBigUint64(b, unix.NFTA_DYNSET_TIMEOUT, uint64(p.timeout)*1000)
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

// programs are the rules of the chain.
func (p picker) programs() [][]byte {
	pick := &expressions{family: p.family}
	if p.slots == 0 {
		// As IPVS does if a virtual server has no destination for a new connection.
		_ = pick.reject(map[inet.Family]kernel.Reject{inet.IPv4: kernel.PortUnreachable, inet.IPv6: kernel.PortUnreachable6}[p.family])
		return [][]byte{pick.b}
	}
	pick.frontend(p.allPorts)
	pick.random(p.slots)
	pick.find(slotsMap(p.family), pick.chosen(), true)
	if p.timeout == 0 {
		pick.translate(p.allPorts)
		return [][]byte{pick.b}
	}
	pick.client(p.mask)
	pick.remember(p)
	pick.translate(p.allPorts)

	// The endpoint of a client must still be one of the frontend's.
	stay := &expressions{family: p.family}
	stay.frontend(p.allPorts)
	stay.client(p.mask)
	stay.find(sticksMap(p.family), stay.third(), true)
	stay.find(endsSet(p.family), 0, false)
	stay.client(p.mask)
	stay.find(sticksMap(p.family), stay.chosen(), true)
	stay.remember(p)
	stay.translate(p.allPorts)
	return [][]byte{stay.b, pick.b}
}

func (p picker) requests() []nlbatch.Request {
	return chainRequests(p.name(), p.programs())
}

// chainRequests creates a chain or replaces its rules. The comments are how a reader recognizes a complete chain.
func chainRequests(name string, programs [][]byte) []nlbatch.Request {
	reqs := []nlbatch.Request{newChain(name), flushChain(name)}
	for i, code := range programs {
		b := rulesOf(name)
		b = nlbatch.AppendAttr(b, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, code)
		b = nlbatch.AppendAttr(b, unix.NFTA_RULE_USERDATA, comment(ruleComment(i, len(programs))))
		reqs = append(reqs, request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, b))
	}
	return reqs
}

func ruleComment(i, of int) string { return fmt.Sprintf("balancing %d of %d", i+1, of) }

// entrance is the chain that looks frontends up: the port's own, or else that of every port.
func entrance(f inet.Family) []nlbatch.Request {
	var programs [][]byte
	for _, allPorts := range []bool{false, true} {
		e := &expressions{family: f}
		e.frontend(allPorts)
		e.find(frontsMap(f), unix.NFT_REG_VERDICT, true)
		programs = append(programs, e.b)
	}
	return chainRequests(balanceChain(f), programs)
}
