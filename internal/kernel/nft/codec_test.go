package nft

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

var setTypes = []kernel.SetType{kernel.HashIP, kernel.HashIPPort, kernel.HashIPPortIP, kernel.HashIPPortNet}

func drawSet(t *rapid.T) (kernel.Set, kernel.Element) {
	s := kernel.Set{
		Name: "S", Type: rapid.SampledFrom(setTypes).Draw(t, "type"), Family: rapid.SampledFrom(inet.Families).Draw(t, "family"),
		MaxElem: rapid.Uint32Range(1, 1<<20).Draw(t, "size"),
	}
	address := func(name string) netip.Addr {
		b := rapid.SliceOfN(rapid.Byte(), s.Family.Bits()/8, s.Family.Bits()/8).Draw(t, name)
		b[0] |= 1 // not the null address
		if s.Family == inet.IPv6 {
			b[0] = 0xfd // not an IPv4-mapped address
		}
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	e := kernel.Element{Addr: address("address")}
	if s.Type == kernel.HashIP {
		return s, e
	}
	e.Protocol = rapid.SampledFrom([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}).Draw(t, "protocol")
	e.Port = rapid.Uint16().Draw(t, "port")
	switch s.Type {
	case kernel.HashIPPortIP:
		e.Addr2 = address("second")
	case kernel.HashIPPortNet:
		bits := rapid.IntRange(1, s.Family.Bits()).Draw(t, "bits")
		e.Addr2, e.Bits2 = netip.PrefixFrom(address("second"), bits).Masked().Addr(), uint8(bits)
	}
	return s, e
}

// Messages that add an element and messages that list it have the same format.
func TestElementsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, e := drawSet(t)
		req, err := elementRequest(unix.NFT_MSG_NEWSETELEM, 0, s, e)
		if err != nil {
			t.Fatalf("%s %s: %v", s, e, err)
		}
		read, stray := map[kernel.Element]struct{}{}, false
		if err := wire.EachElement(req.Payload, decodeInto(read, &stray, s)); err != nil {
			t.Fatal(err)
		}
		if _, same := read[e]; !same || len(read) != 1 || stray {
			t.Errorf("%s: wrote %s, read %v", s, e, read)
		}
	})
}

func TestSetsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, _ := drawSet(t)
		req, err := newSet(s)
		if err != nil {
			t.Fatal(err)
		}
		if table, _, read, err := wire.DecodeSet(req.Payload); err != nil || table != Table || setOf(read) != s {
			t.Errorf("wrote %s, read %s of table %s: %v", s, setOf(read), table, err)
		}
	})
}

func TestRuleCommentsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := kernel.Rule{Why: rapid.StringMatching(`[ -~]{0,200}`).Draw(t, "why"), Verdict: kernel.Drop}
		at := kernel.ChainID{Table: "filter", Chain: "X"}
		req, err := newRule(inet.IPv6, at, rule, false)
		if err != nil {
			t.Fatal(err)
		}
		r, err := wire.DecodeRule(req.Payload)
		if f, id, ok := parseChain(r.Chain); err != nil || kernel.TagOf(r.Comment) != rule.Tag() || !ok || f != inet.IPv6 || id != at {
			t.Errorf("read %q in %s: %v", r.Comment, r.Chain, err)
		}
	})
}

// The bytes of one rule, written by hand from include/uapi/linux/netfilter/nf_tables.h.
func TestGoldenRule(t *testing.T) {
	rule := kernel.Rule{Why: "x", Conditions: []kernel.Condition{kernel.Ping{Family: inet.IPv4}}, Verdict: kernel.Drop}
	code, err := program(inet.IPv4, kernel.ChainID{Table: "filter", Chain: "X"}, rule, false)
	if err != nil {
		t.Fatal(err)
	}
	const want = "24000180" + "09000100" + "6d657461" + "00000000" + "14000280" + "08000100" + "00000001" + "08000200" + "00000010" + // meta l4proto
		"2c000180" + "08000100" + "636d7000" + "20000280" + "08000100" + "00000001" + "08000200" + "00000000" + "0c000380" + "05000100" + "01000000" + // == icmp
		"30000180" + "0e000100" + "696d6d65" + "64696174" + "65000000" + "1c000280" + "08000100" + "00000000" + "10000280" + "0c000280" + "08000100" + "00000000" // drop
	if got := hex.EncodeToString(code); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, t := range setTypes {
		s := kernel.Set{Name: "S", Type: t, Family: inet.IPv4, MaxElem: 1}
		req, _ := newSet(s)
		f.Add(req.Payload)
	}
	rule, _ := newRule(inet.IPv4, kernel.ChainID{Table: "nat", Chain: "X"}, kernel.Rule{Verdict: kernel.Accept}, true)
	f.Add(rule.Payload)
	e := kernel.Element{Addr: netip.MustParseAddr("10.0.0.1"), Protocol: inet.TCP, Port: 80, Addr2: netip.MustParseAddr("10.0.0.0"), Bits2: 8}
	member, _ := elementRequest(unix.NFT_MSG_NEWSETELEM, 0, kernel.Set{Name: "S", Type: kernel.HashIPPortNet, Family: inet.IPv4}, e)
	f.Add(member.Payload)
	f.Add(nlbatch.AppendAttr(make([]byte, 4), unix.NFTA_RULE_USERDATA, []byte{0, 200, 'x'}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		_, _, _, _ = wire.DecodeSet(payload)
		r, _ := wire.DecodeRule(payload)
		_ = looksUp(r, "S")
		for _, typ := range setTypes {
			for _, family := range inet.Families {
				read, stray := map[kernel.Element]struct{}{}, false
				s := kernel.Set{Name: "S", Type: typ, Family: family}
				_ = wire.EachElement(payload, decodeInto(read, &stray, s))
				for e := range read {
					if _, err := encodeElement(s, e); err != nil {
						t.Errorf("%s: read %s: %v", s, e, err)
					}
				}
			}
		}
	})
}
