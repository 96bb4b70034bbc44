package preflight

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

var needs = Needs{
	Rules:      kernel.RulesIPTables,
	Schedulers: []string{"rr", "mh"},
	Families:   inet.Families,
}

var limit = kernel.SysctlSetting{Name: "net/netfilter/nf_conntrack_max", Value: "2", Optional: true}

var sysctls = []kernel.SysctlSetting{{Name: "net/ipv4/ip_forward", Value: "1"}, {Name: "net/ipv4/vs/conntrack", Value: "1"}, limit}

func examine(f facts, needs Needs) []finding.Finding {
	return findings(f, needs, sysctls, choose(f, needs))
}

func bridge(b kernel.Bridge) func(*facts) { return func(f *facts) { f.bridges = []kernel.Bridge{b} } }

func TestFindings(t *testing.T) {
	absent := fmt.Errorf("x: %w", errAbsent)
	for _, tc := range []struct {
		name  string
		spoil func(*facts)
		want  []string // parts of the only finding; empty if no finding is expected
		fatal bool
	}{
		{"nothing", func(*facts) {}, nil, false},
		{"NET_ADMIN", func(f *facts) { f.capabilities = 1 << unix.CAP_NET_RAW; f.ipvs, f.dummy = unix.EPERM, unix.EPERM }, []string{"capability NET_ADMIN"}, true},
		{"NET_RAW", func(f *facts) { f.capabilities = 1 << unix.CAP_NET_ADMIN }, []string{"capability NET_RAW", "ipsets"}, true},
		{"IPVS", func(f *facts) { f.ipvs = absent; f.schedulers = nil; delete(f.sysctls, "net/ipv4/vs/conntrack") },
			[]string{"module ip_vs:", "modprobe ip_vs`", "kernel-modules-extra"}, true},
		{"scheduler", func(f *facts) { f.schedulers["mh"] = absent }, []string{"module ip_vs_mh"}, false},
		{"fallback scheduler", func(f *facts) { f.schedulers["rr"] = absent }, []string{"module ip_vs_rr"}, true},
		{"scheduler not checked", func(f *facts) { f.schedulers["mh"] = errors.New("boom") }, []string{"ip_vs_mh", "could not be checked: boom"}, false},
		{"dummy", func(f *facts) { f.dummy, f.bridge = absent, absent }, []string{"modprobe dummy"}, true},
		{"dummy, but a bridge", func(f *facts) { f.dummy = absent }, nil, false},
		{"set type", func(f *facts) { f.setTypes[kernel.HashIPPortIP] = absent }, []string{"module ip_set_hash_ipportip"}, true},
		{"iptables", func(f *facts) { f.iptables = fmt.Errorf("%w; %s", iptables.ErrNotInstalled, iptables.Install) },
			[]string{"iptables: neither", "is in PATH; install package iptables"}, true},
		{"iptables that does not work", func(f *facts) { f.iptables = errors.New("boom") }, []string{"iptables: boom", "nf_tables"}, true},
		{"ip6tables", func(f *facts) { f.detected.Without = map[inet.Family]error{inet.IPv6: errors.New("boom")} },
			[]string{"iptables for IPv6: boom", "IPv6 Services are not served"}, false},
		{"iptables that fails now", func(f *facts) { f.detected.Unsure = map[inet.Family]error{inet.IPv6: errors.New("boom")} },
			[]string{"iptables for IPv6: boom", "uses it anyway"}, false},
		{"xt_set", func(f *facts) { f.extensions[extensions[0]] = absent }, []string{"module xt_set"}, true},
		{"xt_comment", func(f *facts) { f.extensions[extensions[2]] = absent }, []string{"module xt_comment"}, false},
		{"xt_MASQUERADE for iptables-legacy", withoutMasquerade, []string{"module xt_MASQUERADE"}, true},
		{"sysctl read-only and correct", func(f *facts) { f.sysctls["net/ipv4/ip_forward"] = sysctl{value: "1"} }, nil, false},
		{"sysctl read-only and wrong", func(f *facts) { f.sysctls["net/ipv4/ip_forward"] = sysctl{value: "0"} }, []string{"is 0, must be 1", "sysctl -w net/ipv4/ip_forward=1"}, true},
		{"sysctl wrong, but writable", func(f *facts) { f.sysctls["net/ipv4/ip_forward"] = sysctl{value: "0", writable: true} }, nil, false},
		{"conntrack limit read-only", func(f *facts) { f.sysctls[limit.Name] = sysctl{value: "1", fixed: true} },
			[]string{"is 1, must be 2, and is not writable outside the host's network namespace", "sysctl -w net/netfilter/nf_conntrack_max=2", "conntrack.maxPerCore"}, false},
		{"sysctl missing", func(f *facts) { delete(f.sysctls, "net/ipv4/vs/conntrack") }, []string{"sysctl net/ipv4/vs/conntrack", "CONFIG_IP_VS_NFCT"}, false},
		{"IPv6", func(f *facts) { f.ipv6 = false }, []string{"IPv6: disabled"}, false},
		{"old kernel", func(f *facts) { f.kernel.release = "4.19.139" }, []string{"kernel 4.19.139", "one second", "4.19.140"}, false},
		{"bridge with pods", bridge(kernel.Bridge{Name: "cni0", Containers: true, Families: []inet.Family{inet.IPv4}}),
			[]string{"bridge cni0: netfilter does not process IPv4", "modprobe br_netfilter", "net.bridge.bridge-nf-call-iptables=1"}, false},
		{"IPv6 bridge with pods", bridge(kernel.Bridge{Name: "cni0", Containers: true, Families: inet.Families, Filtered: map[inet.Family]bool{inet.IPv4: true}}),
			[]string{"bridge cni0: netfilter does not process IPv6", "net.bridge.bridge-nf-call-ip6tables=1"}, false},
		{"bridge that netfilter sees", bridge(kernel.Bridge{Name: "cni0", Containers: true, Families: inet.Families,
			Filtered: map[inet.Family]bool{inet.IPv4: true, inet.IPv6: true}}), nil, false},
		{"bridge without addresses", bridge(kernel.Bridge{Name: "br0", Containers: true}), nil, false},
		{"bridge without containers", bridge(kernel.Bridge{Name: "virbr0", Families: inet.Families}), nil, false},
		{"unreadable release", func(f *facts) { f.kernel = kernelVersion{} }, []string{"known faults are not checked", "CVE-2025-68813"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := goodFacts()
			tc.spoil(&f)
			got := examine(f, needs)
			if len(tc.want) == 0 {
				if len(got) > 0 {
					t.Errorf("got findings %v, want none", got)
				}
				return
			}
			if len(got) != 1 || (got[0].Severity == finding.Broken) != tc.fatal || got[0].Remedy == "" {
				t.Fatalf("got findings %+v, want one with a remedy and fatal %t", got, tc.fatal)
			}
			if strings.Count(got[0].String(), "install") > 1 {
				t.Errorf("finding %q repeats its advice", got[0])
			}
			for _, part := range tc.want {
				if !strings.Contains(got[0].String(), part) {
					t.Errorf("finding %q lacks %q", got[0], part)
				}
			}
		})
	}
}

// If iptables or ipset is missing, auto selects nftables and gives the reason.
func TestChooseRules(t *testing.T) {
	absent := fmt.Errorf("x: %w", errAbsent)
	for _, tc := range []struct {
		name, setting string
		spoil         func(*facts)
		want          string // part of the reason for nftables; empty if iptables is expected
	}{
		{"all there", kernel.RulesAuto, func(*facts) {}, ""},
		{"no programs", kernel.RulesAuto, func(f *facts) { f.iptables = fmt.Errorf("%w; x", iptables.ErrNotInstalled) }, "not installed"},
		{"programs without kernel", kernel.RulesAuto, func(f *facts) { f.iptables = errors.New("boom") }, "does not work: boom"},
		{"no ipset", kernel.RulesAuto, func(f *facts) { f.setTypes[kernel.HashIPPortNet] = absent }, "no module ip_set_hash_ipportnet"},
		{"ipset unknown", kernel.RulesAuto, func(f *facts) { f.setTypes[kernel.HashIP] = errors.New("boom") }, ""},
		{"no xt_set", kernel.RulesAuto, func(f *facts) { f.extensions[extensions[0]] = absent }, "no module xt_set"},
		{"no xt_MASQUERADE for iptables-legacy", kernel.RulesAuto, withoutMasquerade, "no module xt_MASQUERADE"},
		{"no xt_comment", kernel.RulesAuto, func(f *facts) { f.extensions[extensions[2]] = absent }, ""},
		{"by setting", kernel.RulesNFTables, func(*facts) {}, "--rules is nftables"},
		{"iptables by setting", kernel.RulesIPTables, func(f *facts) { f.iptables = errors.New("boom") }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := goodFacts()
			tc.spoil(&f)
			asks := needs
			asks.Rules = tc.setting
			chosen := choose(f, asks)
			nftables := chosen.Mode == kernel.IPVSWithNFTables
			if nftables != (tc.want != "") || !strings.Contains(chosen.WhyRules, tc.want) {
				t.Errorf("got %s because of %q, want the reason %q", chosen.Mode, chosen.WhyRules, tc.want)
			}
			if found := examine(f, asks); nftables && len(found) > 0 {
				t.Errorf("nftables works, but got findings %v", found)
			}
		})
	}
}

// If neither iptables nor nftables works, the finding explains both.
func TestNeitherWorks(t *testing.T) {
	f := goodFacts()
	f.iptables, f.nftables = iptables.ErrNotInstalled, errors.New("set KIPVS-4-VIP: boom")
	f.capabilities = 1 << unix.CAP_NET_ADMIN
	asks := needs
	asks.Rules, asks.AcceptServices = kernel.RulesAuto, true
	found := examine(f, asks)
	if len(found) != 2 || found[0].Severity != finding.Broken || found[1].Severity != finding.Broken || !strings.Contains(found[1].String(), "--rules=iptables") {
		t.Fatalf("got findings %v, want one about nftables and one about accept-service-traffic", found)
	}
	for _, part := range []string{"iptables is not installed", "KIPVS-4-VIP: boom", "nft_fib_inet", "install package iptables"} {
		if !strings.Contains(found[0].String(), part) {
			t.Errorf("finding %q does not contain %q", found[0], part)
		}
	}
}

func goodFacts() facts {
	f := facts{
		kernel:       kernelVersion{release: "7.2.0"},
		capabilities: 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW,
		schedulers:   map[string]error{},
		setTypes:     map[kernel.SetType]error{},
		extensions:   map[extension]error{},
		sysctls:      map[string]sysctl{"net/ipv4/ip_forward": {value: "1", writable: true}, "net/ipv4/vs/conntrack": {value: "0", writable: true}, limit.Name: {value: "2"}},
		ipv6:         true,
	}
	for _, e := range extensions {
		f.extensions[e] = nil
	}
	return f
}

func TestParseCapabilities(t *testing.T) {
	if got := parseCapabilities("Name:\tx\nCapEff:\t0000000000003000\nCapBnd:\t00\n"); got != 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW {
		t.Errorf("capabilities %x", got)
	}
	if got := parseCapabilities("CapEff:\tnonsense\n"); got != 0 {
		t.Errorf("got capabilities %x from invalid input, want 0", got)
	}
}

var masquerade = extensions[slices.IndexFunc(extensions, func(e extension) bool { return e.name == "MASQUERADE" })]

func withoutMasquerade(f *facts) {
	f.extensions[masquerade], f.detected.Variant = fmt.Errorf("x: %w", errAbsent), iptables.Legacy
}
