package live

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// Each of manyServices has 10 endpoints. perService bounds the allocations per Service of an audit that finds no differences.
const (
	manyServices = 1000
	perService   = 500
)

func services(n int) []kernel.Op {
	set := kernel.Set{Name: kerneltest.SetPrefix + "A", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 1 << 20}
	objects := []kernel.Object{set, kernel.DummyDevice{}}
	addr := func(net byte, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{net, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range n {
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr(10, i), 80), Protocol: inet.TCP}
		objects = append(objects, kernel.Server{Key: key, Scheduler: "rr", MaskBits: 32})
		for j := range 10 {
			d := kernel.Destination{Addr: netip.AddrPortFrom(addr(11, 10*i+j), 8080), Weight: 1}
			objects = append(objects, kernel.ServerDestination{Server: key, Destination: d})
		}
	}
	for i := range n {
		objects = append(objects, kernel.Member{Set: set.Name, Element: kernel.Element{Addr: addr(10, i)}}, kernel.BoundAddress{Addr: addr(10, i)})
	}
	ops := make([]kernel.Op, len(objects))
	for i, object := range objects {
		ops[i] = kernel.Op{Verb: kernel.Create, Object: object}
	}
	return ops
}

// An audit that finds no differences allocates little memory, and can run while the agent writes.
func TestAuditCost(t *testing.T) {
	labtest.NetNS(t)
	k := openHere(t, iptables.NFT)
	for i, err := range k.Apply(context.Background(), services(manyServices)) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	for _, audit := range []string{"first", "second", "third"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := cpu(t)
		d, err := k.Audit(context.Background(), kernel.Audit{})
		took := cpu(t) - began
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		bytes := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s audit: %d virtual servers differ; CPU %v, %d KiB", audit, len(d.Servers), took, bytes>>10)
		if audit != "first" && (len(d.Servers) > 0 || bytes > perService*manyServices) {
			t.Errorf("%s audit: %d virtual servers differ, %d bytes", audit, len(d.Servers), bytes)
		}
	}
}

func cpu(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// TestAuditsOfUnchangedNFTables: after two audits that found the same generation, or after one that found a generation that a quick check had seen
// before, an audit lists no object of nftables, and starts no process. It lists them again after any change.
func TestAuditsOfUnchangedNFTables(t *testing.T) {
	for mode, others := range map[kernel.Mode]uint64{kernel.IPVSWithIPTables: 3, kernel.IPVSWithNFTables: 1, kernel.NFTablesOnly: 0} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			labtest.NetNS(t)
			k := openConfig(t, Config{Variant: iptables.NFT, Mode: mode})
			must(t, k, services(3)...)
			lists := func() uint64 {
				t.Helper()
				before := k.Stats()
				if _, err := k.Audit(context.Background(), kernel.Audit{}); err != nil {
					t.Fatal(err)
				}
				after := k.Stats()
				return after.Netlink.Dumps - before.Netlink.Dumps + after.Processes - before.Processes
			}
			for change, checked := range map[string]bool{"add table inet one": false, "add table inet other": true} {
				labtest.Run(t, "nft", change)
				reads := 2
				if checked {
					check(t, k)
					k.seen.since = k.seen.since.Add(-settling)
					reads = 1
				}
				for range reads {
					if n := lists(); n <= others {
						t.Errorf("%d lists after %q", n, change)
					}
				}
				for range 3 {
					if n := lists(); n != others {
						t.Errorf("%d lists without a change, want %d", n, others)
					}
				}
			}
		})
	}
}
