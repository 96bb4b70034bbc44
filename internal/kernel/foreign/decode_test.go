package foreign

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func objref(typ uint32) []byte {
	number := binary.BigEndian.AppendUint32(nil, typ)
	attrs := nlbatch.AppendString(nlbatch.AppendAttr(nil, unix.NFTA_OBJREF_IMM_TYPE, number), unix.NFTA_OBJREF_IMM_NAME, "o")
	return nlbatch.AppendAttr(nlbatch.AppendString(nil, unix.NFTA_EXPR_NAME, "objref"), unix.NFTA_EXPR_DATA, attrs)
}

// An object of an unknown type is opaque, because it may stop packets.
func TestObjects(t *testing.T) {
	opaque, harmless := kernel.NFTOpaque{Text: "object o"}, kernel.NFTAction{Name: "objref"}
	want := map[uint32]kernel.NFTStatement{
		unix.NFT_OBJECT_COUNTER: harmless, unix.NFT_OBJECT_CT_HELPER: harmless, unix.NFT_OBJECT_SECMARK: harmless, unix.NFT_OBJECT_CT_EXPECT: harmless,
		unix.NFT_OBJECT_CT_TIMEOUT: kernel.NFTAction{Name: "ct timeout"}, unix.NFT_OBJECT_TUNNEL: kernel.NFTAction{Name: "tunnel"},
		unix.NFT_OBJECT_SYNPROXY: kernel.NFTAction{Name: "synproxy"},
	}
	for typ := range uint32(20) {
		wanted, listed := want[typ]
		if !listed {
			wanted = opaque
		}
		x, wrong := wire.DecodeExpression(objref(typ))
		if got, err := statement(x); err != nil || wrong != nil || got != wanted {
			t.Errorf("type %d: %v, %v, %v, want %v", typ, got, err, wrong, wanted)
		}
	}
}

func FuzzDecode(f *testing.F) {
	head := []byte{unix.NFPROTO_INET, 0, 0, 0}
	f.Add(nlbatch.AppendAttr(head, unix.NFTA_RULE_EXPRESSIONS, nlbatch.AppendAttr(nil, 1, objref(unix.NFT_OBJECT_LIMIT))))
	f.Add(nlbatch.AppendAttr(head, unix.NFTA_SET_KEY_LEN, []byte{0, 0, 0, 4}))
	f.Add(nlbatch.AppendAttr(head, unix.NFTA_SET_ELEM_LIST_ELEMENTS, nlbatch.AppendAttr(nil, 1, nlbatch.AppendAttr(nil, unix.NFTA_SET_ELEM_FLAGS, []byte{0, 0, 0, 1}))))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if _, rule, err := decodeRule(payload); err == nil {
			for _, s := range rule.Statements {
				if from, length := reads(s); from < 0 || from >= lengthOfRegisters/lengthOfRegister || length > lengthOfRegisters {
					t.Errorf("%+v reads %d bytes of register %d", s, length, from)
				}
			}
		}
		_, s, err := decodeSet(payload)
		if err != nil || s.decodeElements(payload) != nil {
			return
		}
		s.close()
		for _, n := range s.Fields {
			if n < 0 || n > lengthOfRegisters {
				t.Errorf("decoded a field of %d bytes", n)
			}
		}
	})
}

// reads returns the register and the number of bytes that a statement reads or writes.
func reads(s kernel.NFTStatement) (register, length int) {
	switch s := s.(type) {
	case kernel.NFTLoad:
		return s.To, s.Field.Length
	case kernel.NFTStore:
		return s.From, s.Field.Length
	case kernel.NFTBitwise:
		return max(s.From, s.To), s.Length
	case kernel.NFTByteOrder:
		return max(s.From, s.To), max(s.Length, s.Size)
	case kernel.NFTLookup:
		return max(s.From, s.To), 0
	case kernel.NFTCompare:
		return s.From, 0
	case kernel.NFTSourceNAT:
		return max(s.Addresses[0], s.Addresses[1], s.Ports[0], s.Ports[1], 0), 0
	}
	return 0, 0
}
