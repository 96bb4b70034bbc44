package ipset

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const benchMembers = 10_000

func benchElement(i int) kernel.Element {
	return kernel.Element{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Protocol: inet.TCP, Port: 80}
}

// BenchmarkAdd compares this package with the library and the command.
func BenchmarkAdd(b *testing.B) {
	s := set("V", kernel.HashIPPort, inet.IPv4)
	b.Run("batched", func(b *testing.B) {
		backend := open(b)
		ops := make([]kernel.Op, benchMembers)
		for i := range ops {
			ops[i] = op(kernel.Create, kernel.Member{Set: s.Name, Element: benchElement(i)})
		}
		benchFill(b, backend, s, func() { must(b, backend, ops...) })
	})
	b.Run("library", func(b *testing.B) {
		benchFill(b, open(b), s, func() {
			for i := range benchMembers {
				e := benchElement(i)
				port, protocol := e.Port, uint8(e.Protocol)
				entry := &netlink.IPSetEntry{IP: net.IP(e.Addr.AsSlice()), Port: &port, Protocol: &protocol}
				if err := netlink.IpsetAdd(s.Name, entry); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("restore", func(b *testing.B) {
		var text strings.Builder
		for i := range benchMembers {
			fmt.Fprintf(&text, "add %s %s\n", s.Name, benchElement(i))
		}
		benchFill(b, open(b), s, func() {
			cmd := exec.Command("ipset", "restore")
			cmd.Stdin = strings.NewReader(text.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		})
	})
}

func benchFill(b *testing.B, backend *Backend, s kernel.Set, fill func()) {
	for b.Loop() {
		b.StopTimer()
		must(b, backend, op(kernel.Delete, s), op(kernel.Create, s))
		b.StartTimer()
		fill()
	}
}

func BenchmarkList(b *testing.B) {
	s := set("V", kernel.HashIPPort, inet.IPv4)
	ops := []kernel.Op{op(kernel.Create, s)}
	for i := range benchMembers {
		ops = append(ops, op(kernel.Create, kernel.Member{Set: s.Name, Element: benchElement(i)}))
	}
	b.Run("batched", func(b *testing.B) { benchList(b, open(b), s.Name, ops, ownList) })
	b.Run("library", func(b *testing.B) { benchList(b, open(b), s.Name, ops, libraryList) })
}

func benchList(b *testing.B, backend *Backend, name string, ops []kernel.Op, list func(*testing.B, *Backend, string) int) {
	must(b, backend, ops...)
	for b.Loop() {
		if n := list(b, backend, name); n != benchMembers {
			b.Fatalf("%d members", n)
		}
	}
}

func ownList(b *testing.B, backend *Backend, name string) int {
	_, members := readAll(b, backend)
	return len(members[name])
}

func libraryList(b *testing.B, _ *Backend, name string) int {
	list, err := netlink.IpsetList(name)
	if err != nil {
		b.Fatal(err)
	}
	return len(list.Entries)
}
