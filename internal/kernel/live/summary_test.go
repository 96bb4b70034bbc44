package live

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// A summary reads summaryServers virtual servers in full. summaryBytes and summaryRequests bound its cost.
const (
	summaryServers  = 4
	summaryBytes    = 32 << 10
	summaryRequests = 12
)

// The cost of a summary is independent of the number of Services.
func TestSummaryCost(t *testing.T) {
	labtest.NetNS(t)
	k := openHere(t, iptables.NFT)
	ops := services(manyServices)
	var keys []kernel.ServerKey
	for i, err := range k.Apply(context.Background(), ops) {
		if err != nil {
			t.Fatal(i, err)
		}
		if server, ok := ops[i].Object.(kernel.Server); ok && len(keys) < summaryServers {
			keys = append(keys, server.Key)
		}
	}
	const times = 20
	for range 2 { // the first summary lists the rules
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began, asked := cpu(t), k.Stats().Netlink
		for range times {
			s, err := k.Summarize(context.Background(), kernel.Sample{Servers: keys})
			if err != nil || s.IPv4Servers != manyServices || len(s.Servers) != len(keys) {
				t.Fatal(s, err)
			}
		}
		took, now := cpu(t)-began, k.Stats().Netlink
		runtime.ReadMemStats(&after)
		bytes := (after.TotalAlloc - before.TotalAlloc) / times
		requests := (now.Requests + now.Dumps - asked.Requests - asked.Dumps) / times
		t.Logf("a summary: CPU %v, %d KiB, %d requests", took/times, bytes>>10, requests)
		if bytes > summaryBytes || requests > summaryRequests {
			t.Errorf("%d bytes and %d requests; want at most %d and %d", bytes, requests, summaryBytes, summaryRequests)
		}
	}
}

// Most summaries do not count the members of sets, because the kernel would visit each bucket, even of an empty set. They notice that a set was
// emptied.
func TestSummariesCountRarely(t *testing.T) {
	k := open(t, iptables.NFT)
	set := kernel.Set{Name: kerneltest.SetPrefix + "A", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 65536}
	empty := set
	empty.Name = kerneltest.SetPrefix + "B"
	var members []kernel.Member
	ops := []kernel.Op{{Verb: kernel.Create, Object: set}, {Verb: kernel.Create, Object: empty}}
	summary := func() *kernel.Summary {
		t.Helper()
		s, err := k.Summarize(context.Background(), kernel.Sample{Members: members[:min(1, len(members))]})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// counts returns the number of summaries before the next one that counts.
	counts := func() (without int) {
		t.Helper()
		for ; ; without++ {
			s := summary()
			if s.Sets != nil {
				if s.Sets[set.Name].Members != len(members) || s.Sets[empty.Name].Set != empty {
					t.Fatalf("got %v, want %d members", s.Sets, len(members))
				}
				return without
			}
			if without > mostWithout {
				t.Fatalf("%d summaries do not count", without)
			}
			if len(s.Members) != min(1, len(members)) {
				t.Fatalf("members %v", s.Members)
			}
		}
	}
	const buckets = 1024 // the kernel's default for each set
	visited := 2 * buckets
	must(t, k, ops...)
	if first := counts(); first != 0 {
		t.Errorf("the first summary does not count")
	}
	if without := counts(); without < visited/visitedEach {
		t.Errorf("%d summaries without counting, after one that visited at least %d buckets", without, visited)
	}
	ops = nil
	for i := range 3 * visitedEach {
		members = append(members, kernel.Member{Set: set.Name, Element: kernel.Element{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}})
		ops = append(ops, kernel.Op{Verb: kernel.Create, Object: members[i]})
	}
	must(t, k, ops...)
	counts()
	if without := counts(); without < (visited+len(members))/visitedEach {
		t.Errorf("%d summaries without counting, after one that visited at least %d buckets and %d members", without, visited, len(members))
	}
	labtest.Run(t, "ipset", "create", "other", "hash:ip", "hashsize", fmt.Sprint(2*mostWithout*visitedEach))
	counts()
	if without := counts(); without != mostWithout {
		t.Errorf("%d summaries without counting beside a large set of another program", without)
	}
	labtest.Run(t, "ipset", "flush", set.Name)
	if s := summary(); s.Sets != nil || len(s.Members) != 0 {
		t.Errorf("after a flush: sets %v, members %v", s.Sets, s.Members)
	}
}

// Another program's rules in its own chains or after the agent's jump do not change the summary. A rule before the jump does.
func TestSummaryIgnoresOtherChains(t *testing.T) {
	k := open(t, iptables.NFT)
	chain := kerneltest.Chains[0]
	rules := kernel.Ruleset{
		Family: inet.IPv4,
		Chains: []kernel.Chain{{ChainID: chain, Rules: []kernel.Rule{{Why: "TCP", Conditions: []kernel.Condition{kernel.OfProtocol{Protocol: inet.TCP}}, Verdict: kernel.Return}}}},
		Jumps: []kernel.Jump{{
			ChainID: kernel.ChainID{Table: chain.Table, Chain: "OUTPUT"}, Rule: kernel.Rule{Why: "Services", Verdict: kernel.JumpTo(chain.Chain)},
		}},
	}
	if err := k.Apply(context.Background(), []kernel.Op{{Verb: kernel.Ensure, Object: rules}})[0]; err != nil {
		t.Fatal(err)
	}
	sum := func() uint64 {
		t.Helper()
		s, err := k.Summarize(context.Background(), kernel.Sample{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Rules[inet.IPv4]
	}
	run := func(args ...string) { t.Helper(); labtest.Run(t, "iptables-nft -t "+chain.Table, args...) }
	before := sum()
	run("-N", "CNI-POD-1")
	run("-A", "CNI-POD-1", "-j", "RETURN")
	run("-A", "OUTPUT", "-j", "CNI-POD-1")
	run("-A", "POSTROUTING", "-j", "CNI-POD-1")
	if sum() != before {
		t.Error("another program's rules change the summary")
	}
	run("-I", "OUTPUT", "-j", "ACCEPT")
	if sum() == before {
		t.Error("a rule before ours does not change the summary")
	}
}
