package iptables

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestParseRule(t *testing.T) {
	pods := netip.MustParsePrefix("10.244.0.0/16")
	all := func(conditions ...kernel.Condition) []kernel.Condition { return conditions }
	for _, c := range []struct {
		spec string
		want kernel.Rule
	}{
		{"-j LOG", kernel.Rule{Verdict: kernel.Ignored("LOG")}},
		{"-p tcp", kernel.Rule{Conditions: all(kernel.OfProtocol{Protocol: inet.TCP})}},
		{"-s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE --random-fully", kernel.Rule{
			Conditions: all(kernel.From{Prefix: pods}, kernel.Negated{Condition: kernel.To{Prefix: pods}}), Verdict: kernel.Masquerade{RandomPort: true},
		}},
		{`-m comment --comment "-j ! \"it\"" -i veth+ ! -o docker0 -g DOCKER`, kernel.Rule{
			Why:        `-j ! "it"`,
			Conditions: all(kernel.Arrives{Interface: "veth", Prefix: true}, kernel.Negated{Condition: kernel.Leaves{Interface: "docker0"}}), Verdict: kernel.GoTo("DOCKER"),
		}},
		{"-p udp -m multiport --dports 53,8000:8080 -j DROP", kernel.Rule{
			Conditions: all(kernel.OfProtocol{Protocol: inet.UDP}, kernel.ToPorts{Ports: kernel.Ports{{First: 53, Last: 53}, {First: 8000, Last: 8080}}}), Verdict: kernel.Drop,
		}},
		{"-p esp -m conntrack --ctstate NEW,DNAT -j ACCEPT", kernel.Rule{
			Conditions: all(kernel.OfProtocol{}, kernel.States{"NEW", "DNAT"}), Verdict: kernel.Accept,
		}},
		{"-m mark --mark 0x1/0xf -j MARK --set-xmark 0x0/0xffffffff", kernel.Rule{
			Conditions: all(kernel.MarkIs{Bits: 1, Mask: 0xf}), Verdict: kernel.ChangeMark{Mask: 0xffffffff},
		}},
		{"-m mark --mark 0x1 -j REJECT --reject-with icmp-port-unreachable", kernel.Rule{
			Conditions: all(kernel.MarkIs{Bits: 1, Mask: 0xffffffff}), Verdict: kernel.PortUnreachable,
		}},
		{"-m addrtype --src-type LOCAL -m addrtype --dst-type LOCAL -j RETURN", kernel.Rule{
			Conditions: all(kernel.FromThisNode{}, kernel.ToThisNode{}), Verdict: kernel.Return,
		}},
		{"-m set ! --match-set KUBE-LOOP-BACK dst,dst,src -j SNAT --to-source 192.0.2.1", kernel.Rule{
			Conditions: all(kernel.Negated{Condition: kernel.InSet{Set: "KUBE-LOOP-BACK", Key: kernel.KeyDestinationClient}}),
			Verdict:    kernel.SourceNAT{First: netip.MustParseAddr("192.0.2.1"), Last: netip.MustParseAddr("192.0.2.1")},
		}},
		{"-m string ! --string attack --algo bm -m addrtype --dst-type BROADCAST -j CT --notrack", kernel.Rule{
			Conditions: all(kernel.Negated{Condition: kernel.Unknown("--string attack")}, kernel.Unknown("--algo bm"), kernel.AddrType{Types: []string{"BROADCAST"}}),
			Verdict:    kernel.NoTrack{},
		}},
		{"-m length ! --length 100: -j DROP", kernel.Rule{Conditions: all(kernel.Negated{Condition: kernel.Length{First: 100, Last: 65535}}), Verdict: kernel.Drop}},
		{"-j NFQUEUE --queue-num 0", kernel.Rule{Verdict: kernel.OtherTarget("NFQUEUE")}},
		{"-p tcp -m tcp --sport 1024:65535 --tcp-flags FIN,SYN,RST,ACK SYN -m connmark ! --mark 0x4/0xff -j CONNMARK --restore-mark --nfmask 0xff --ctmask 0xff", kernel.Rule{
			Conditions: all(kernel.OfProtocol{Protocol: inet.TCP}, kernel.FromPorts{Ports: kernel.Ports{{First: 1024, Last: 65535}}}, kernel.TCPFlags{Mask: 0x17, Set: 2},
				kernel.Negated{Condition: kernel.ConnectionMarkIs{Bits: 4, Mask: 0xff}}),
			Verdict: kernel.RestoreMark{ConnectionMask: 0xff, Mask: 0xff},
		}},
		{"-m conntrack --ctorigdst 10.96.0.1 --ctorigdstport 80 --ctdir REPLY -m iprange --src-range 10.0.0.1-10.0.0.9 -j CONNMARK --save-mark", kernel.Rule{
			Conditions: all(kernel.OriginalTo{Prefix: netip.MustParsePrefix("10.96.0.1/32")}, kernel.OriginalToPorts{Ports: kernel.Ports{{First: 80, Last: 80}}},
				kernel.Replies{}, kernel.AddrRange{Source: true, First: netip.MustParseAddr("10.0.0.1"), Last: netip.MustParseAddr("10.0.0.9")}),
			Verdict: kernel.SaveMark{Mask: ^uint32(0), ConnectionMask: ^uint32(0)},
		}},
		{"-m recent --set --name DEFAULT --mask 255.255.255.255 --rsource -m rpfilter --validmark --invert -m owner --uid-owner 0 -m addrtype ! --src-type LOCAL --limit-iface-out",
			kernel.Rule{Conditions: all(kernel.Negated{Condition: kernel.ReversePath{}}, kernel.OfSocket("--uid-owner 0"),
				kernel.Negated{Condition: kernel.AddrType{Source: true, OfInterface: true, Types: []string{"LOCAL"}}})}},
		{"-j DNAT --to-destination 10.244.0.1:80", kernel.Rule{Verdict: kernel.Redirect{}}},
	} {
		got := ParseRule(kernel.ChainID{}, c.spec)
		if d := cmp.Diff(c.want, got.Rule, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})); d != "" || got.Tag != "" || got.Spec != c.spec {
			t.Errorf("%s: tag %q, spec %q, -want +got\n%s", c.spec, got.Tag, got.Spec, d)
		}
	}
}

func TestRecognize(t *testing.T) {
	id := kernel.ChainID{Table: "nat", Chain: "KUBE-MARK-MASQ"}
	ours := kernel.Rule{Why: "mark", Verdict: kernel.SetMark(0x4000)}
	of := func(r kernel.Rule) kernel.SavedRule {
		return ParseRule(id, `-m comment --comment "`+r.Comment()+`" -j MARK --set-xmark 0x4000/0x4000`)
	}
	other := kernel.Rule{Why: "mark", Verdict: kernel.SetMark(0x8000)}
	l := kernel.RuleListing{Rules: map[kernel.ChainID][]kernel.SavedRule{id: {of(ours), of(other), ParseRule(id, "-j RETURN")}}}
	l.Recognize(kernel.Ruleset{Chains: []kernel.Chain{{ChainID: id, Rules: []kernel.Rule{ours}}}})
	for i, want := range []kernel.Rule{
		ours, {Why: "mark", Verdict: kernel.ChangeMark{Invert: 0x4000, Mask: 0x4000}}, {Verdict: kernel.Return},
	} {
		if d := cmp.Diff(want, l.Rules[id][i].Rule); d != "" {
			t.Errorf("rule %d: -want +have\n%s", i, d)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, seed := range []string{"", "!", "-j", `-m comment --comment`, `! "" -s 10.0.0.0/33`, "--mark 0x1/", "-i + -j ACCEPT"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		r := ParseRule(kernel.ChainID{}, spec)
		for _, c := range r.Rule.Conditions {
			kernel.ConditionText(c)
		}
		if r.Spec != spec {
			t.Error(r.Spec)
		}
	})
}

// TestTargets: a target whose effect explain does not know is never harmless.
func TestTargets(t *testing.T) {
	source := func(first, last string, ports ...kernel.PortRange) kernel.Verdict {
		return kernel.SourceNAT{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last), Ports: ports}
	}
	for spec, want := range map[string]kernel.Verdict{
		"SNAT --to-source 192.0.2.1-192.0.2.9:1024-2047 --random": source("192.0.2.1", "192.0.2.9", kernel.PortRange{First: 1024, Last: 2047}),
		"SNAT --to-source fd00::1-fd00::9":                        source("fd00::1", "fd00::9"),
		"SNAT --to-source [fd00::1]:1024-2047":                    source("fd00::1", "fd00::1", kernel.PortRange{First: 1024, Last: 2047}),
		"SNAT --to-source :1024-2047":                             kernel.OtherTarget("SNAT"),
		"MASQUERADE --to-ports 1500":                              kernel.SourceNAT{Ports: kernel.Ports{{First: 1500, Last: 1500}}},
		"CT --zone 5":                                             kernel.SetZone{Zone: 5, Original: true, Reply: true},
		"CT --zone-orig 5":                                        kernel.SetZone{Zone: 5, Original: true},
		"CT --zone-reply 5":                                       kernel.SetZone{Zone: 5, Reply: true},
		"CT --zone-orig 5 --zone-reply 6":                         kernel.OtherTarget("CT"),
		"CT --zone mark":                                          kernel.OtherTarget("CT"),
		"CT --timeout short":                                      kernel.OtherTarget("CT"),
		"CT --helper ftp":                                         kernel.Ignored("CT"),
		"TTL --ttl-set 64":                                        kernel.Ignored("TTL"),
		"TTL --ttl-inc 1":                                         kernel.Ignored("TTL"),
		"TTL --ttl-set 1":                                         kernel.OtherTarget("TTL"),
		"TTL --ttl-dec 1":                                         kernel.OtherTarget("TTL"),
		"HL --hl-set 1":                                           kernel.OtherTarget("HL"),
		"TCPMSS --clamp-mss-to-pmtu":                              kernel.Ignored("TCPMSS"),
		"TCPMSS --set-mss 1360":                                   kernel.Ignored("TCPMSS"),
		"TCPMSS --set-mss 60":                                     kernel.OtherTarget("TCPMSS"),
		"SET --add-set seen src":                                  kernel.Ignored("SET"),
		"SET --map-set marks src --map-mark":                      kernel.OtherTarget("SET"),
		"TEE --gateway 192.0.2.9":                                 kernel.OtherTarget("TEE"),
	} {
		got := ParseRule(kernel.ChainID{}, "-j "+spec).Rule.Verdict
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
			t.Errorf("%s: -want +got\n%s", spec, d)
		}
	}
}
