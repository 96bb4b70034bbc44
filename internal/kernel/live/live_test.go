package live

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

var programs = map[iptables.Variant]map[inet.Family]string{
	iptables.NFT:    {inet.IPv4: "iptables-nft", inet.IPv6: "ip6tables-nft"},
	iptables.Legacy: {inet.IPv4: "iptables-legacy", inet.IPv6: "ip6tables-legacy"},
}

func open(t *testing.T, variant iptables.Variant) *Kernel {
	t.Helper()
	labtest.NetNS(t)
	return openHere(t, variant)
}

func openHere(t *testing.T, variant iptables.Variant) *Kernel {
	t.Helper()
	return openConfig(t, Config{Variant: variant})
}

func openConfig(t *testing.T, cfg Config) *Kernel {
	t.Helper()
	cfg.SetPrefix, cfg.Chains, cfg.Sysctls, cfg.Families = kerneltest.SetPrefix, kerneltest.Chains, kerneltest.Sysctls, inet.Families
	k, err := Open(cfg)
	labtest.Opened(t, k, err)
	return k
}

func TestConformance(t *testing.T) { kerneltest.Conformance(t, subjects(iptables.NFT)) }

func TestConformanceOfLegacyRules(t *testing.T) {
	kerneltest.RulesConformance(t, subjects(iptables.Legacy))
}

func TestConformanceOfNFTables(t *testing.T) {
	kerneltest.Conformance(t, func(t *testing.T) kerneltest.Subject {
		labtest.NetNS(t)
		return kerneltest.Subject{Kernel: openConfig(t, Config{Mode: kernel.IPVSWithNFTables}), Admin: kerneltest.NFTCommands{Table: nft.Table}, OwnTable: true}
	})
}

func subjects(variant iptables.Variant) kerneltest.Open {
	return func(t *testing.T) kerneltest.Subject {
		return kerneltest.Subject{Kernel: open(t, variant), Admin: kerneltest.Commands{IPTables: programs[variant]}}
	}
}

// Consecutive operations for one backend need only one system call.
func TestBatches(t *testing.T) {
	k := open(t, iptables.NFT)
	f := kerneltest.MustParseDump("ipvsadm -A -t 10.96.0.1:80 -s rr\n" +
		"ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:80 -m -w 1\n" +
		"ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.2:80 -m -w 1\n")
	var ops []kernel.Op
	for key, s := range f.State().Servers {
		ops = append(ops, kernel.Op{Verb: kernel.Create, Object: s.Server})
		for _, d := range s.Destinations {
			object := kernel.ServerDestination{Server: key, Destination: d.Destination}
			ops = append(ops, kernel.Op{Verb: kernel.Create, Object: object})
		}
	}
	before := k.Stats()
	for i, err := range k.Apply(context.Background(), ops) {
		if err != nil {
			t.Errorf("%s: %v", ops[i], err)
		}
	}
	after := k.Stats()
	if sends := after.Netlink.Sends - before.Netlink.Sends; sends != 1 {
		t.Errorf("%d sends for %d operations, want 1", sends, len(ops))
	}
	if requests := after.Netlink.Requests - before.Netlink.Requests; requests != uint64(len(ops)) {
		t.Errorf("%d requests for %d operations", requests, len(ops))
	}
	if after.Processes != before.Processes {
		t.Error("a process was started")
	}
}

// TestMain runs fewer random checks, because kernels are slow in software emulation. The flag -rapid.checks takes precedence.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", "15"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
