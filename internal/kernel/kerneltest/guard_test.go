package kerneltest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The tests TestEveryFieldOf... change each field of each type of package kernel. The change must appear in the dump, and in a kernel
// created from the dump. The tests fail if a type gains a field that Dump, parseDump or Diff does not handle.

func TestEveryFieldOfServersIsKnown(t *testing.T) {
	server := persistent(plain(tcp("10.96.0.1:80")), 60, 32)
	guard(t, server, map[string]func(*kernel.Server){
		"Key":       func(s *kernel.Server) { s.Key = tcp("10.96.0.1:81") },
		"Scheduler": func(s *kernel.Server) { s.Scheduler = "wlc" },
		"Flags":     func(s *kernel.Server) { s.Flags |= kernel.FlagOnePacket },
		"Timeout":   func(s *kernel.Server) { s.Timeout++ },
		"MaskBits":  func(s *kernel.Server) { s.MaskBits-- },
	}, func(f *Fake, s kernel.Server) error { return f.AddServer(s) })

	guard(t, server.Key, map[string]func(*kernel.ServerKey){
		"Addr":     func(k *kernel.ServerKey) { k.Addr = netip.MustParseAddrPort("10.96.0.2:80") },
		"Protocol": func(k *kernel.ServerKey) { k.Protocol = inet.SCTP },
	}, func(f *Fake, k kernel.ServerKey) error { return f.AddServer(plain(k)) })

	guard(t, kernel.ServerDestination{Server: server.Key, Destination: dest("10.244.0.1:80", 1)},
		map[string]func(*kernel.ServerDestination){
			"Server":      func(d *kernel.ServerDestination) { d.Server.Protocol = inet.UDP },
			"Destination": func(d *kernel.ServerDestination) { d.Weight++ },
		}, func(f *Fake, d kernel.ServerDestination) error { return f.AddServer(plain(d.Server), d.Destination) })

	guard(t, kernel.Timeouts{TCP: time.Second}, map[string]func(*kernel.Timeouts){
		"TCP":    func(t *kernel.Timeouts) { t.TCP = time.Minute },
		"TCPFin": func(t *kernel.Timeouts) { t.TCPFin = time.Minute },
		"UDP":    func(t *kernel.Timeouts) { t.UDP = time.Minute },
	}, func(f *Fake, t kernel.Timeouts) error { return f.SetTimeouts(t) })
}

func TestEveryFieldOfDestinationsIsKnown(t *testing.T) {
	server := persistent(plain(tcp("10.96.0.1:80")), 60, 32)
	stats := kernel.DestinationStats{Active: 1, Inactive: 1, Persistent: 1}
	limited := dest("10.244.0.1:80", 1)
	limited.Upper, limited.Lower = 20, 10
	guard(t, limited, map[string]func(*kernel.Destination){
		"Addr":   func(d *kernel.Destination) { d.Addr = netip.MustParseAddrPort("10.244.0.1:81") },
		"Weight": func(d *kernel.Destination) { d.Weight = 0 },
		"Upper":  func(d *kernel.Destination) { d.Upper = 100 },
		"Lower":  func(d *kernel.Destination) { d.Lower-- },
	}, func(f *Fake, d kernel.Destination) error { return f.AddServer(server, d) })

	observed := kernel.ObservedDestination{Destination: dest("10.244.0.1:80", 1), Stats: stats}
	guard(t, observed, map[string]func(*kernel.ObservedDestination){
		"Destination": func(o *kernel.ObservedDestination) { o.Weight++ },
		"Forwarding":  func(o *kernel.ObservedDestination) { o.Forwarding = kernel.ForwardTunnel },
		"Stats":       func(o *kernel.ObservedDestination) { o.Stats.Active++ },
	}, func(f *Fake, o kernel.ObservedDestination) error {
		d := behind(server.Key, o.Destination)
		if err := f.AddServer(server, o.Destination); err != nil {
			return err
		}
		f.setStats(d, o.Stats)
		return f.SetForwarding(d, o.Forwarding)
	})

	guard(t, stats, map[string]func(*kernel.DestinationStats){
		"Active":     func(s *kernel.DestinationStats) { s.Active++ },
		"Inactive":   func(s *kernel.DestinationStats) { s.Inactive++ },
		"Persistent": func(s *kernel.DestinationStats) { s.Persistent++ },
	}, func(f *Fake, s kernel.DestinationStats) error {
		d := dest("10.244.0.1:80", 1)
		err := f.AddServer(server, d)
		f.setStats(behind(server.Key, d), s)
		return err
	})
}

func TestEveryFieldOfSetsIsKnown(t *testing.T) {
	set := setNamed("A")
	guard(t, set, map[string]func(*kernel.Set){
		"Name":    func(s *kernel.Set) { s.Name += "2" },
		"Type":    func(s *kernel.Set) { s.Type = kernel.HashIPPort },
		"Family":  func(s *kernel.Set) { s.Family = inet.IPv6 },
		"MaxElem": func(s *kernel.Set) { s.MaxElem++ },
		"Stray":   func(s *kernel.Set) { s.Stray = true },
	}, func(f *Fake, s kernel.Set) error { return f.CreateSet(s) })

	guard(t, rangeOf(netip.MustParsePrefix("10.0.0.0/8")), map[string]func(*kernel.Element){
		"Addr":     func(e *kernel.Element) { e.Addr = ip4(96, 3) },
		"Protocol": func(e *kernel.Element) { e.Protocol = inet.UDP },
		"Port":     func(e *kernel.Element) { e.Port++ },
		"Addr2":    func(e *kernel.Element) { e.Addr2 = netip.MustParseAddr("11.0.0.0") },
		"Bits2":    func(e *kernel.Element) { e.Bits2++ },
	}, func(f *Fake, e kernel.Element) error {
		clients := set
		clients.Type = kernel.HashIPPortNet
		if err := f.CreateSet(clients); err != nil {
			return err
		}
		return f.AddMember(member(clients, e))
	})

	twoSets := func(f *Fake, m kernel.Member) error {
		for _, s := range []kernel.Set{setNamed("A"), setNamed("B")} {
			if err := f.CreateSet(s); err != nil {
				return err
			}
		}
		return f.AddMember(m)
	}
	guard(t, member(set, kernel.Element{Addr: ip4(96, 1)}), map[string]func(*kernel.Member){
		"Set":     func(m *kernel.Member) { m.Set = setNamed("B").Name },
		"Element": func(m *kernel.Member) { m.Element.Addr = ip4(96, 2) },
	}, twoSets)
}

func TestEveryFieldOfAddressesAndSysctlsIsKnown(t *testing.T) {
	guard(t, kernel.BoundAddress{Addr: ip4(96, 1)}, map[string]func(*kernel.BoundAddress){
		"Addr":    func(a *kernel.BoundAddress) { a.Addr = ip6(96, 1) },
		"Binding": func(a *kernel.BoundAddress) { a.Binding = kernel.Routed },
	}, func(f *Fake, a kernel.BoundAddress) error {
		if err := f.admin(kernel.Create, kernel.DummyDevice{}); err != nil {
			return err
		}
		return f.AddAddress(a)
	}, "Moved")

	guard(t, kernel.DummyDevice{}, nil, func(f *Fake, d kernel.DummyDevice) error { return f.admin(kernel.Create, d) })

	guard(t, kernel.SysctlSetting{Name: "net/ipv4/ip_forward", Value: "1"}, map[string]func(*kernel.SysctlSetting){
		"Name":  func(s *kernel.SysctlSetting) { s.Name = "net/ipv4/vs/conntrack" },
		"Value": func(s *kernel.SysctlSetting) { s.Value = "2" },
	}, func(f *Fake, s kernel.SysctlSetting) error { return f.SetSysctl(s) }, "Optional")
}

func TestEveryFieldOfRulesIsKnown(t *testing.T) {
	rule := kernel.Rule{Why: "because", Verdict: kernel.Accept}
	ensure := func(f *Fake, r kernel.Ruleset) error { return f.admin(kernel.Ensure, r) }
	guard(t, typical(inet.IPv4, 1), map[string]func(*kernel.Ruleset){
		"Family": func(r *kernel.Ruleset) { r.Family = inet.IPv6 },
		"Chains": func(r *kernel.Ruleset) { r.Chains = append(r.Chains, kernel.Chain{ChainID: otherChain}) },
		"Jumps":  func(r *kernel.Ruleset) { r.Jumps = r.Jumps[:1] },
	}, ensure)

	oneChain := func(f *Fake, c kernel.Chain) error {
		return ensure(f, kernel.Ruleset{Family: inet.IPv4, Chains: []kernel.Chain{c}})
	}
	guard(t, kernel.Chain{ChainID: natChain}, map[string]func(*kernel.Chain){
		"ChainID": func(c *kernel.Chain) { c.ChainID = filterChain },
		"Rules":   func(c *kernel.Chain) { c.Rules = []kernel.Rule{rule} },
	}, oneChain)
	guard(t, natChain, map[string]func(*kernel.ChainID){
		"Table": func(c *kernel.ChainID) { c.Table = "filter" },
		"Chain": func(c *kernel.ChainID) { c.Chain += "2" },
	}, func(f *Fake, id kernel.ChainID) error { return oneChain(f, kernel.Chain{ChainID: id}) })

	oneJump := func(f *Fake, j kernel.Jump) error {
		return ensure(f, kernel.Ruleset{Family: inet.IPv4, Jumps: []kernel.Jump{j}})
	}
	guard(t, kernel.Jump{ChainID: input, Rule: rule}, map[string]func(*kernel.Jump){
		"ChainID": func(j *kernel.Jump) { j.ChainID = postrouting },
		"Rule":    func(j *kernel.Jump) { j.Why = "to another end" },
	}, oneJump)
	guard(t, rule, map[string]func(*kernel.Rule){
		"Why":        func(r *kernel.Rule) { r.Why = "to another end" },
		"Conditions": func(r *kernel.Rule) { r.Conditions = []kernel.Condition{kernel.OfProtocol{Protocol: inet.TCP}} },
		"Verdict":    func(r *kernel.Rule) { r.Verdict = kernel.Return },
	}, func(f *Fake, r kernel.Rule) error { return oneJump(f, kernel.Jump{ChainID: input, Rule: r}) })
}

var otherChain = kernel.ChainID{Table: "filter", Chain: "KUBE-OTHER"}

// guard checks one type. put creates a kernel that contains the value. wishes names the fields that exist only in the wanted state, so
// guard skips them.
func guard[T any](t *testing.T, value T, changes map[string]func(*T), put func(*Fake, T) error, wishes ...string) {
	t.Helper()
	kind := reflect.TypeFor[T]()
	var fields []string
	for field := range kind.Fields() {
		if !slices.Contains(wishes, field.Name) {
			fields = append(fields, field.Name)
		}
	}
	slices.Sort(fields)
	if known := slices.Sorted(maps.Keys(changes)); !slices.Equal(fields, known) {
		t.Errorf("%s has the fields %v, but Dump and parseDump handle %v", kind, fields, known)
	}
	base := holding(t, value, put)
	for name, change := range changes {
		changed := value
		change(&changed)
		other := holding(t, changed, put)
		if base.Dump() == other.Dump() {
			t.Errorf("%s.%s: Dump does not show it:\n%s", kind, name, base.Dump())
		}
		if Diff(base.State(), other.State()) == "" {
			t.Errorf("%s.%s: Diff ignores it", kind, name)
		}
	}
}

func holding[T any](t *testing.T, value T, put func(*Fake, T) error) *Fake {
	t.Helper()
	f := New()
	if err := put(f, value); err != nil {
		t.Fatalf("%T %s: %v", value, fmt.Sprint(value), err)
	}
	again, err := parseDump(f.Dump())
	if err != nil {
		t.Fatalf("%T: parsing its dump: %v\n%s", value, err, f.Dump())
	}
	if diff := Diff(f.State(), again.State()); diff != "" {
		t.Errorf("%T: the value changed after Dump and parseDump (-before +after):\n%s", value, diff)
	}
	return again
}

// TestEveryPartOfAStateIsKnown fails if State gains a field that the fake does not fill.
func TestEveryPartOfAStateIsKnown(t *testing.T) {
	f := MustParseDump(world)
	state := f.State()
	f.Stick(inet.IPv6)
	stuck, err := f.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	state.RulesErr, state.MayMiss = stuck.RulesErr, true // SlowAudits sets it
	for field, value := range reflect.ValueOf(state).Elem().Fields() {
		if value.IsZero() || value.Kind() == reflect.Map && value.Len() == 0 {
			t.Errorf("the fake does not fill State.%s", field.Name)
		}
	}
}
