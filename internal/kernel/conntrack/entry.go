package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// The protocol: include/uapi/linux/netfilter/nfnetlink_conntrack.h.
const (
	cmdGet    = 1
	cmdDelete = 2

	attrOriginal = 1 // the tuple in the direction of the first packet
	attrReply    = 2
	attrStatus   = 3
	attrInfo     = 4 // state of the protocol, such as TCP
	attrTimeout  = 7
	attrID       = 12
	attrZone     = 18

	statusSeenReply = 1 << 1

	infoTCP    = 1
	infoSCTP   = 3
	infoState  = 1
	tcpSynSent = 1

	tupleAddresses = 1
	tupleProtocol  = 2
	tupleZone      = 3

	addressSource4, addressDestination4 = 1, 2
	addressSource6, addressDestination6 = 3, 4

	protocolNumber          = 1
	protocolSourcePort      = 2
	protocolDestinationPort = 3

	headerLen = 4 // struct nfgenmsg
)

func request(cmd uint16, f inet.Family, attrs []byte) nlbatch.Request {
	family := uint8(unix.AF_INET)
	if f == inet.IPv6 {
		family = unix.AF_INET6
	}
	return nlbatch.Request{
		Type:    unix.NFNL_SUBSYS_CTNETLINK<<8 | cmd,
		Payload: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
}

type tuple struct {
	protocol            inet.Protocol
	source, destination netip.AddrPort
}

// entry is a tracked connection. Its slices point into the kernel's message.
type entry struct {
	original, reply           []byte
	id, status, info, timeout []byte
	// zoned is true if another program put the connection, or one direction of it, into a zone. Such a connection
	// belongs to that program, and its addresses may belong to another network. Virtual switches use zones.
	zoned bool
}

func readEntry(payload []byte) (e entry, err error) {
	if len(payload) < headerLen {
		return entry{}, fmt.Errorf("message of %d bytes", len(payload))
	}
	err = nlbatch.EachAttr(payload[headerLen:], func(typ uint16, v []byte) error {
		switch typ {
		case attrOriginal:
			e.original = v
		case attrReply:
			e.reply = v
		case attrID:
			e.id = v
		case attrZone:
			e.zoned = e.zoned || !isZero(v)
		case attrStatus:
			e.status = v
		case attrInfo:
			e.info = v
		case attrTimeout:
			e.timeout = v
		}
		return nil
	})
	if err == nil && (e.original == nil || e.reply == nil || e.id == nil) {
		err = errors.New("no tuple or id")
	}
	return e, errors.Join(err, e.readZones())
}

func (e *entry) readZones() error {
	var errs []error
	for _, direction := range [][]byte{e.original, e.reply} {
		errs = append(errs, nlbatch.EachAttr(direction, func(typ uint16, v []byte) error {
			e.zoned = e.zoned || typ == tupleZone && !isZero(v)
			return nil
		}))
	}
	return errors.Join(errs...)
}

func isZero(v []byte) bool { return !slices.ContainsFunc(v, func(b byte) bool { return b != 0 }) }

func (e entry) flow() (kernel.Flow, error) {
	there, err := readTuple(e.original)
	if err != nil {
		return kernel.Flow{}, fmt.Errorf("original direction: %w", err)
	}
	back, err := readTuple(e.reply)
	if err != nil {
		return kernel.Flow{}, fmt.Errorf("reply direction: %w", err)
	}
	return kernel.Flow{
		Key:        kernel.ServerKey{Addr: there.destination, Protocol: there.protocol},
		Client:     there.source,
		Endpoint:   back.source,
		Unanswered: there.protocol == inet.TCP && e.unanswered(),
		OneWay:     e.oneWay(),
		// The node's own packets may keep their address, but get another port.
		Masqueraded: back.destination != there.source,
	}, nil
}

// unanswered reports whether the kernel has only seen the client's first packet of a TCP connection. The result is false if this
// cannot be determined.
func (e entry) unanswered() bool {
	sent := false
	err := eachOf(e.info, infoTCP, func(typ uint16, v []byte) error {
		if typ == infoState {
			sent = len(v) == 1 && v[0] == tcpSynSent
		}
		return nil
	})
	return err == nil && sent && e.oneWay()
}

// oneWay reports whether the kernel has seen no reply. The result is false if this cannot be determined.
func (e entry) oneWay() bool {
	status, err := nlbatch.BigUint32(e.status)
	return err == nil && status&statusSeenReply == 0
}

// deletion returns a request that deletes this entry. The request includes the id, which depends on the entry's memory address, so a later entry
// with the same tuple is usually not deleted.
func (e entry) deletion(f inet.Family) nlbatch.Request {
	return request(cmdDelete, f, nlbatch.AppendAttr(e.name(), attrID, e.id))
}

// reading returns a request for the entry that now has this tuple.
func (e entry) reading(f inet.Family) nlbatch.Request { return request(cmdGet, f, e.name()) }

// name returns the attributes that identify an entry outside all zones.
func (e entry) name() []byte {
	return nlbatch.AppendAttr(nil, attrOriginal|unix.NLA_F_NESTED, e.original)
}

func protocolOf(b []byte) (p inet.Protocol, err error) {
	err = eachOf(b, tupleProtocol, func(typ uint16, v []byte) error {
		if typ != protocolNumber {
			return nil
		}
		n, err := nlbatch.Uint8(v)
		p = inet.Protocol(n)
		return err
	})
	if err == nil && p == 0 {
		err = errors.New("no protocol")
	}
	return p, err
}

func readTuple(b []byte) (t tuple, err error) {
	if t.protocol, err = protocolOf(b); err != nil {
		return tuple{}, err
	}
	source, destination, err := readAddresses(b)
	if err != nil {
		return tuple{}, err
	}
	from, to, err := readPorts(b)
	if err != nil {
		return tuple{}, err
	}
	t.source, t.destination = netip.AddrPortFrom(source, from), netip.AddrPortFrom(destination, to)
	return t, nil
}

func readAddresses(b []byte) (source, destination netip.Addr, err error) {
	err = eachOf(b, tupleAddresses, func(typ uint16, v []byte) error {
		a, ok := netip.AddrFromSlice(v)
		if !ok {
			return fmt.Errorf("address of %d bytes", len(v))
		}
		switch typ {
		case addressSource4, addressSource6:
			source = a
		case addressDestination4, addressDestination6:
			destination = a
		}
		return nil
	})
	if err == nil && (!source.IsValid() || !destination.IsValid()) {
		err = errors.New("no address")
	}
	return source, destination, err
}

func readPorts(b []byte) (source, destination uint16, err error) {
	found := 0
	err = eachOf(b, tupleProtocol, func(typ uint16, v []byte) (err error) {
		switch typ {
		case protocolSourcePort:
			source, err = nlbatch.BigUint16(v)
			found++
		case protocolDestinationPort:
			destination, err = nlbatch.BigUint16(v)
			found++
		}
		return err
	})
	if err == nil && found != 2 {
		err = errors.New("no port")
	}
	return source, destination, err
}

func eachOf(b []byte, nest uint16, handle func(uint16, []byte) error) error {
	return nlbatch.EachAttr(b, func(typ uint16, v []byte) error {
		if typ != nest {
			return nil
		}
		return nlbatch.EachAttr(v, handle)
	})
}
