package ipvs

import (
	"encoding/binary"
	"net/netip"
	"testing"

	lib "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	benchServers      = 1000
	benchDestinations = 10
)

func benchAddr(net byte, i int) netip.AddrPort {
	b := binary.BigEndian.AppendUint32(nil, uint32(net)<<24|uint32(i))
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), 80)
}

func benchOps() []kernel.Op {
	var ops []kernel.Op
	for i := range benchServers {
		s := server(benchAddr(10, i).String(), inet.TCP)
		ops = append(ops, op(kernel.Create, s))
		for j := range benchDestinations {
			d := kernel.Destination{Addr: benchAddr(11, i*benchDestinations+j), Weight: 1}
			ops = append(ops, op(kernel.Create, kernel.ServerDestination{Server: s.Key, Destination: d}))
		}
	}
	return ops
}

func writeByLibrary(b *testing.B, h *lib.Handle, ops []kernel.Op) {
	var svc *lib.Service
	for _, o := range ops {
		var err error
		switch object := o.Object.(type) {
		case kernel.Server:
			svc = &lib.Service{
				Address: object.Key.Addr.Addr().AsSlice(), Port: object.Key.Addr.Port(), Protocol: uint16(object.Key.Protocol),
				SchedName: lib.RoundRobin, Netmask: fullMaskIPv4, AddressFamily: unix.AF_INET,
			}
			err = h.NewService(svc)
		case kernel.ServerDestination:
			err = h.NewDestination(svc, &lib.Destination{
				Address: object.Addr.Addr().AsSlice(), Port: object.Addr.Port(), Weight: 1, AddressFamily: unix.AF_INET,
			})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkWrite creates 1,000 servers with 10 destinations each in an empty namespace.
func BenchmarkWrite(b *testing.B) {
	ops := benchOps()
	b.Run("batched", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			backend, _ := openBackend(b)
			b.StartTimer()
			must(b, backend, ops...)
		}
	})
	b.Run("library", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			openBackend(b)
			h, err := lib.New("")
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			writeByLibrary(b, h, ops)
			h.Close()
		}
	})
}

func BenchmarkRead(b *testing.B) {
	for _, way := range []struct {
		name string
		read func(testing.TB, *Backend) table
	}{
		{"batched", readAll},
		{"library", func(t testing.TB, _ *Backend) table { return libraryTable(t) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			backend, _ := openBackend(b)
			must(b, backend, benchOps()...)
			for b.Loop() {
				if n := len(way.read(b, backend)); n != benchServers {
					b.Fatalf("%d servers", n)
				}
			}
		})
	}
}
