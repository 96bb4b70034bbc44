package live

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func TestConformanceOfBalancing(t *testing.T) {
	kerneltest.Conformance(t, func(t *testing.T) kerneltest.Subject {
		labtest.NetNS(t)
		return kerneltest.Subject{Kernel: openConfig(t, Config{Mode: kernel.NFTablesOnly}), Admin: kerneltest.NFTCommands{Table: nft.Table}, OwnTable: true, Balanced: true}
	})
}

// replacement replaces an endpoint of the first of the services, in two steps as the agent does.
func replacement(round byte) [][]kernel.Op {
	at := func(n byte) kernel.ServerDestination {
		return kernel.ServerDestination{
			Server:      kernel.ServerKey{Addr: netip.MustParseAddrPort("10.0.0.0:80"), Protocol: inet.TCP},
			Destination: kernel.Destination{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{12, 0, 0, n}), 8080), Weight: 1},
		}
	}
	return [][]kernel.Op{{{Verb: kernel.Create, Object: at(round)}}, {{Verb: kernel.Delete, Object: at(round - 1)}}}
}

func asked(t *testing.T, k *Kernel, do func()) nlbatch.Stats {
	t.Helper()
	before := k.Stats().Netlink
	do()
	after := k.Stats().Netlink
	return nlbatch.Stats{Requests: after.Requests - before.Requests, Sends: after.Sends - before.Sends, Dumps: after.Dumps - before.Dumps}
}

// If nftables balances, the cost of an endpoint is independent of the number of Services. A change by the agent makes a quick check read nothing
// but the generation.
func TestChangeCostOfBalancing(t *testing.T) {
	for _, n := range []int{100, manyServices} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			labtest.NetNS(t)
			k := openConfig(t, Config{Mode: kernel.NFTablesOnly})
			must(t, k, services(n)...)
			for _, ops := range append([][]kernel.Op{replacement(1)[0]}, replacement(2)...) { // with more endpoints than any other Service has
				must(t, k, ops...)
			}
			check(t, k)
			for round := byte(3); round < 6; round++ {
				for i, ops := range replacement(round) {
					// The first request of a transaction concerns the table. The others add an endpoint's slot; or move the last endpoint into the
					// slot of the removed one, and delete the last slot. Both replace the element of the frontend.
					want := nlbatch.Stats{Requests: []uint64{4, 6}[i], Sends: 1}
					if took := asked(t, k, func() { must(t, k, ops...) }); took != want {
						t.Errorf("%s took %+v, want %+v", ops[0], took, want)
					}
				}
				took := asked(t, k, func() {
					if s := check(t, k); !s.Untouched || !s.ServersUntouched {
						t.Error("the agent's own changes count as another program's")
					}
				})
				if took != (nlbatch.Stats{Requests: 1, Sends: 1}) {
					t.Errorf("a quick check after the agent's changes took %+v", took)
				}
			}
		})
	}
}

func check(t *testing.T, k *Kernel) *kernel.Summary {
	t.Helper()
	s, err := k.Summarize(t.Context(), kernel.Sample{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A quick check detects another program's change right before or after a change by the agent.
func TestForeignChangeBesideOurs(t *testing.T) {
	set := kerneltest.SetPrefix + "A"
	foreign := func(t *testing.T, _ *Kernel) {
		t.Helper()
		nft := fmt.Sprintf("add element inet kube-ipvs %[1]s { 192.0.2.1 }; delete element inet kube-ipvs %[1]s { 192.0.2.1 }", set)
		labtest.Run(t, "nft", nft)
	}
	own := func(t *testing.T, k *Kernel) {
		t.Helper()
		m := kernel.Member{Set: set, Element: kernel.Element{Addr: netip.MustParseAddr("192.0.2.2")}}
		must(t, k, kernel.Op{Verb: kernel.Create, Object: m})
		must(t, k, kernel.Op{Verb: kernel.Delete, Object: m})
	}
	for _, mode := range []kernel.Mode{kernel.NFTablesOnly, kernel.IPVSWithNFTables} {
		for name, changes := range map[string][]func(*testing.T, *Kernel){
			"none": {}, "ours": {own, own}, "foreign": {foreign}, "foreign, then ours": {foreign, own}, "ours, then foreign": {own, foreign},
		} {
			t.Run(fmt.Sprint(mode, " ", name), func(t *testing.T) {
				labtest.NetNS(t)
				k := openConfig(t, Config{Mode: mode})
				must(t, k, services(3)...)
				if check(t, k).Untouched {
					t.Error("the first check reads nothing")
				}
				for _, change := range changes {
					change(t, k)
				}
				ours := !strings.Contains(name, "foreign")
				s := check(t, k)
				if s.Untouched != ours || s.ServersUntouched != (ours && mode == kernel.NFTablesOnly) || (s.Sets == nil) != ours {
					t.Errorf("untouched %t, virtual servers %t, %d sets", s.Untouched, s.ServersUntouched, len(s.Sets))
				}
				if !check(t, k).Untouched {
					t.Error("a check after a complete one reads the tables again")
				}
			})
		}
	}
}
