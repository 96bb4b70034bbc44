package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func appendTuple(b []byte, typ uint16, t tuple) []byte {
	source, destination := uint16(addressSource4), uint16(addressDestination4)
	if t.source.Addr().Is6() {
		source, destination = addressSource6, addressDestination6
	}
	port := func(b []byte, typ, n uint16) []byte {
		return nlbatch.AppendAttr(b, typ, binary.BigEndian.AppendUint16(nil, n))
	}
	return nlbatch.AppendNest(b, typ, func(b []byte) []byte {
		b = nlbatch.AppendNest(b, tupleAddresses, func(b []byte) []byte {
			b = nlbatch.AppendAttr(b, source, t.source.Addr().AsSlice())
			return nlbatch.AppendAttr(b, destination, t.destination.Addr().AsSlice())
		})
		return nlbatch.AppendNest(b, tupleProtocol, func(b []byte) []byte {
			b = nlbatch.AppendUint8(b, protocolNumber, uint8(t.protocol))
			b = port(b, protocolSourcePort, t.source.Port())
			return port(b, protocolDestinationPort, t.destination.Port())
		})
	})
}

func tupleOf(p inet.Protocol, source, destination string) tuple {
	return tuple{protocol: p, source: netip.MustParseAddrPort(source), destination: netip.MustParseAddrPort(destination)}
}

func message(there, back tuple) []byte {
	b := appendTuple(make([]byte, headerLen), attrOriginal, there)
	b = appendTuple(b, attrReply, back)
	return nlbatch.AppendUint32(b, attrID, 7)
}

var (
	there = tupleOf(inet.SCTP, "192.0.2.1:4000", "10.96.0.1:53")
	back  = tupleOf(inet.SCTP, "10.244.0.1:5353", "192.0.2.1:4000")
)

func TestFlowOfEntry(t *testing.T) {
	flow := kernel.Flow{
		Key:    kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: inet.SCTP},
		Client: netip.MustParseAddrPort("192.0.2.1:4000"), Endpoint: netip.MustParseAddrPort("10.244.0.1:5353"),
	}
	masqueraded, oneWay := flow, flow
	masqueraded.Masqueraded, oneWay.OneWay = true, true
	status := func(n uint32) []byte {
		return nlbatch.AppendAttr(nil, attrStatus, binary.BigEndian.AppendUint32(nil, n))
	}
	for name, c := range map[string]struct {
		message []byte
		want    kernel.Flow
	}{
		"no status":         {message(there, back), flow},
		"a reply was seen":  {append(message(there, back), status(statusSeenReply)...), flow},
		"no reply was seen": {append(message(there, back), status(0)...), oneWay},
		"another address":   {message(there, tupleOf(inet.SCTP, "10.244.0.1:5353", "10.0.0.1:4000")), masqueraded},
		"another port":      {message(there, tupleOf(inet.SCTP, "10.244.0.1:5353", "192.0.2.1:61000")), masqueraded},
	} {
		e, err := readEntry(c.message)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := e.flow(); err != nil || got != c.want {
			t.Errorf("%s: flow %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

// A request without a tuple would delete all connections.
func TestDeletionNamesOneEntry(t *testing.T) {
	for _, f := range inet.Families {
		e, err := readEntry(message(there, back))
		if err != nil {
			t.Fatal(err)
		}
		req := e.deletion(f)
		again, err := readEntry(appendTuple(slices.Clone(req.Payload), attrReply, back))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.original, e.original) || !slices.Equal(again.id, e.id) {
			t.Errorf("the request %x identifies a connection other than %+v", req.Payload, e)
		}
		if family := map[inet.Family]byte{inet.IPv4: unix.AF_INET, inet.IPv6: unix.AF_INET6}[f]; req.Payload[0] != family {
			t.Errorf("%s: the request is for family %d", f, req.Payload[0])
		}
	}
}

func TestZones(t *testing.T) {
	zone := func(typ uint16, number byte) []byte { return nlbatch.AppendAttr(nil, typ, []byte{0, number}) }
	inDirection := func(number byte) []byte {
		b := appendTuple(make([]byte, headerLen), attrReply, back)
		b = nlbatch.AppendUint32(b, attrID, 7)
		return nlbatch.AppendNest(b, attrOriginal, func(b []byte) []byte { return append(b, zone(tupleZone, number)...) })
	}
	for name, c := range map[string]struct {
		message []byte
		want    bool
	}{
		"none":                   {message(there, back), false},
		"the default one":        {append(message(there, back), zone(attrZone, 0)...), false},
		"one":                    {append(message(there, back), zone(attrZone, 5)...), true},
		"one of a direction":     {inDirection(7), true},
		"no zone of a direction": {inDirection(0), false},
	} {
		if e, err := readEntry(c.message); err != nil || e.zoned != c.want {
			t.Errorf("%s: %t, %v", name, e.zoned, err)
		}
	}
}

func tcpEntry(status uint32, state uint8) []byte {
	b := message(tupleOf(inet.TCP, "192.0.2.1:4000", "10.96.0.1:80"), tupleOf(inet.TCP, "10.96.0.1:80", "192.0.2.1:4000"))
	b = nlbatch.AppendAttr(b, attrStatus, binary.BigEndian.AppendUint32(nil, status))
	return nlbatch.AppendNest(b, attrInfo, func(b []byte) []byte {
		return nlbatch.AppendNest(b, infoTCP, func(b []byte) []byte { return nlbatch.AppendUint8(b, infoState, state) })
	})
}

// An answered TCP connection, or one whose state is unreadable, is never stale (I13).
func TestAnsweredConnectionIsLeftAlone(t *testing.T) {
	const confirmed, established = 1 << 3, 3
	w := &walk{protocols: []inet.Protocol{inet.TCP}, stale: func(f kernel.Flow) bool { return f.Unanswered }}
	for name, c := range map[string]struct {
		payload []byte
		want    bool
	}{
		"only the client's first packet": {tcpEntry(confirmed, tcpSynSent), true},
		"a reply was seen":               {tcpEntry(confirmed|statusSeenReply, tcpSynSent), false},
		"established":                    {tcpEntry(confirmed, established), false},
		"no state":                       {message(tupleOf(inet.TCP, "192.0.2.1:1", "10.96.0.1:80"), tupleOf(inet.TCP, "10.96.0.1:80", "192.0.2.1:1")), false},
	} {
		if e, err := w.judge(c.payload, inet.TCP); err != nil || (e != nil) != c.want {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}

func TestUnreadableIsLeftAlone(t *testing.T) {
	whole := message(there, back)
	noReply := appendTuple(make([]byte, headerLen), attrOriginal, there)
	noPorts := nlbatch.AppendNest(make([]byte, headerLen), attrOriginal, func(b []byte) []byte {
		b = nlbatch.AppendNest(b, tupleAddresses, func(b []byte) []byte {
			b = nlbatch.AppendAttr(b, addressSource4, there.source.Addr().AsSlice())
			return nlbatch.AppendAttr(b, addressDestination4, there.destination.Addr().AsSlice())
		})
		return nlbatch.AppendNest(b, tupleProtocol, func(b []byte) []byte {
			return nlbatch.AppendUint8(b, protocolNumber, uint8(inet.UDP))
		})
	})
	noPorts = nlbatch.AppendUint32(appendTuple(noPorts, attrReply, back), attrID, 7)
	w := &walk{protocols: []inet.Protocol{inet.UDP, inet.SCTP}, stale: func(kernel.Flow) bool { return true }}
	for name, payload := range map[string][]byte{
		"no reply tuple":    nlbatch.AppendUint32(noReply, attrID, 7),
		"no original tuple": nlbatch.AppendUint32(appendTuple(make([]byte, headerLen), attrReply, back), attrID, 7),
		"no id":             appendTuple(noReply, attrReply, back),
		"no ports":          noPorts,
		"cut short":         whole[:len(whole)-13],
		"empty":             {},
	} {
		if deletion, err := w.judge(payload, inet.SCTP); err == nil || deletion != nil {
			t.Errorf("%s: %v, %v", name, deletion, err)
		}
	}
	if deletion, err := w.judge(whole, inet.SCTP); err != nil || deletion == nil {
		t.Errorf("a complete entry: deletion %v, error %v", deletion, err)
	}
	w.protocols = []inet.Protocol{inet.UDP}
	if deletion, err := w.judge(whole, inet.SCTP); err != nil || deletion != nil {
		t.Errorf("an entry of another protocol: deletion %v, error %v", deletion, err)
	}
}

// A kernel before 5.8 ignores the filter, so one walk sees everything.
func TestKernelThatSendsEverything(t *testing.T) {
	w := &walk{protocols: []inet.Protocol{inet.UDP, inet.SCTP}, stale: func(kernel.Flow) bool { return true }}
	for _, asked := range []inet.Protocol{inet.SCTP, inet.UDP} {
		if deletion, err := w.judge(message(there, back), asked); err != nil || deletion == nil || w.unfiltered != (asked != inet.SCTP) {
			t.Errorf("the walk for %s received SCTP: deletion %v, error %v, unfiltered %t", asked, deletion, err, w.unfiltered)
		}
	}
}

func FuzzJudge(f *testing.F) {
	f.Add(message(there, back))
	f.Add(message(tupleOf(inet.UDP, "[fd00::1]:1", "[fd00::2]:2"), tupleOf(inet.UDP, "[fd00::3]:2", "[fd00::1]:1")))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &walk{protocols: []inet.Protocol{inet.UDP}, stale: func(flow kernel.Flow) bool {
			if !flow.Key.Addr.IsValid() || !flow.Client.IsValid() || !flow.Endpoint.IsValid() || flow.Key.Protocol != inet.UDP {
				t.Errorf("stale was called with %+v", flow)
			}
			return true
		}}
		deletion, err := w.judge(b, inet.SCTP)
		if err != nil || deletion == nil {
			return
		}
		payload := deletion.deletion(inet.IPv4).Payload
		if e, err := readEntry(appendTuple(payload, attrReply, back)); err != nil || len(e.original) == 0 {
			t.Errorf("the deletion identifies no connection: %x, %v", payload, err)
		}
	})
}

func BenchmarkReadEvent(b *testing.B) {
	payload := message(there, back)
	for b.Loop() {
		if _, is := readEvent(0, payload); !is {
			b.Fatal("not read")
		}
	}
}
