package nft

import (
	"context"
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

const manyElements = 10000

func elements(set string) []kernel.Op {
	ops := make([]kernel.Op, manyElements)
	for i := range ops {
		e := kernel.Element{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Protocol: inet.TCP, Port: 80}
		ops[i] = kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: set, Element: e}}
	}
	return ops
}

func BenchmarkElements(b *testing.B) {
	labtest.NetNSNoIPVS(b)
	nft, err := New(inet.Families, nil)
	labtest.Opened(b, nft, err)
	set := kernel.Set{Name: "S", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 1 << 20}
	apply := func(b *testing.B, ops ...kernel.Op) {
		for i, err := range nft.Apply(context.Background(), ops) {
			if err != nil {
				b.Fatalf("%s: %v", ops[i], err)
			}
		}
	}
	apply(b, kernel.Op{Verb: kernel.Create, Object: set})
	all := elements(set.Name)
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			apply(b, all...)
		}
	})
	b.Run("one", func(b *testing.B) {
		one := kernel.Element{Addr: netip.MustParseAddr("10.97.0.1"), Protocol: inet.TCP, Port: 80}
		for b.Loop() {
			apply(b, kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: set.Name, Element: one}})
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, members, err := nft.ReadSets(context.Background(), ""); err != nil || len(members[set.Name]) < manyElements {
				b.Fatal(len(members[set.Name]), err)
			}
		}
	})
}
