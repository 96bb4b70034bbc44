package kerneltest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// randomOps uses the fake as a model of the kernel: the same operations in the same batches must have the same results and the same final
// state.
func randomOps(b *bench) {
	rapid.Check(b, func(t *rapid.T) {
		b.empty()
		fake := newModel(b.read())
		model := &bench{T: b.T, Subject: Subject{Kernel: fake}}
		for _, batch := range rapid.Custom(randomScript).Draw(t, "script") {
			batch = batch.withoutSingles(fake.State().Sets)
			if b.Balanced {
				batch = slices.DeleteFunc(batch, func(op kernel.Op) bool { return op.KindOf() == kernel.KindTimeouts })
			}
			want, have := model.apply(batch...), b.apply(batch...)
			for i, op := range batch {
				// nftables may accept the creation of an identical object. The state comparison below shows whether the object existed.
				idempotent := b.Balanced && have[i] == nil && op.Verb == kernel.Create && errors.Is(want[i], kernel.ErrExists)
				if meaning(want[i]) != meaning(have[i]) && !idempotent {
					t.Errorf("operation %d of\n%s\nis %s: %v\nthe model says: %v", i+1, batch, op, have[i], want[i])
				}
			}
			if diff := Diff(model.read(), b.read()); diff != "" {
				t.Fatalf("after\n%s(-model +kernel):\n%s", batch, diff)
			}
		}
	})
}

// withoutSingles drops operations that put a single address into a set of ranges. The kernel accepts the address but returns a different
// element, so the model rejects it.
func (b batch) withoutSingles(sets map[string]kernel.Set) batch {
	ofRanges := func(name string) bool {
		return sets[name].Type == kernel.HashIPPortNet || slices.ContainsFunc(b, func(op kernel.Op) bool {
			set, ok := op.Object.(kernel.Set)
			return ok && set.Name == name && set.Type == kernel.HashIPPortNet
		})
	}
	return slices.DeleteFunc(slices.Clone(b), func(op kernel.Op) bool {
		m, ok := op.Object.(kernel.Member)
		return ok && m.Element.Addr2.IsValid() && m.Element.Bits2 == 0 && ofRanges(m.Set)
	})
}

// The model starts with the kernel's sysctls and timeouts, because they exist even in an empty kernel.
func newModel(s *kernel.State) *Fake {
	model := New(Chains...)
	model.sysctls, model.timeouts = maps.Clone(s.Sysctls), s.Timeouts
	return model
}

type script []batch

type batch []kernel.Op

func randomScript(t *rapid.T) script {
	return rapid.SliceOfN(rapid.Map(rapid.SliceOfN(randomOp(), 1, 12), func(list []kernel.Op) batch { return list }), 1, 6).
		Draw(t, "batches")
}

func (s script) GoString() string { return fmt.Sprint([]batch(s)) }

func (b batch) GoString() string { return b.String() }

func (b batch) String() string {
	text := ""
	for _, op := range b {
		text += op.String() + "\n"
	}
	return text
}

func (b *bench) empty() {
	b.Helper()
	s := b.read()
	var all []kernel.Op
	for a := range s.Addresses {
		all = append(all, op(kernel.Delete, bound(a)))
	}
	for key := range s.Servers {
		all = append(all, op(kernel.Delete, kernel.Server{Key: key}))
	}
	for _, family := range inet.Families {
		all = append(all, op(kernel.Delete, typical(family, 0)))
	}
	for _, set := range s.Sets {
		all = append(all, op(kernel.Delete, set))
	}
	b.must(append(all, op(kernel.Delete, kernel.DummyDevice{}))...)
}

// randomOp draws from a few objects, so that several operations often affect the same object.
func randomOp() *rapid.Generator[kernel.Op] {
	return rapid.Custom(func(t *rapid.T) kernel.Op {
		kinds := []func(*rapid.T) kernel.Op{
			randomServer, randomServer, randomDestination, randomDestination, randomSet, randomMember, randomMember,
			randomAddress, randomDevice, randomRules, randomSysctl,
			randomTimeouts,
		}
		return rapid.SampledFrom(kinds).Draw(t, "kind")(t)
	})
}

func randomVerb(t *rapid.T, verbs ...kernel.Verb) kernel.Verb {
	return rapid.SampledFrom(verbs).Draw(t, "verb")
}

var randomKeys = []kernel.ServerKey{
	tcp("10.96.0.1:80"), key("10.96.0.1:80", inet.UDP), key("10.96.0.2:80", inet.SCTP), tcp("[fd00:10:96::1]:80"),
}

func randomServer(t *rapid.T) kernel.Op {
	verb := randomVerb(t, kernel.Create, kernel.Create, kernel.Update, kernel.Delete)
	s := plain(rapid.SampledFrom(randomKeys).Draw(t, "key"))
	s.Scheduler = rapid.SampledFrom([]string{"rr", "wlc", "mh", "nosuch"}).Draw(t, "scheduler")
	s.Flags = rapid.SampledFrom([]uint32{0, kernel.FlagSched1, kernel.FlagSched1 | kernel.FlagSched2}).Draw(t, "flags")
	if rapid.Bool().Draw(t, "persistent") {
		bits := rapid.SampledFrom([]uint8{1, 24, uint8(s.Key.Family().Bits())}).Draw(t, "bits")
		s = persistent(s, rapid.Uint32Range(1, 86400).Draw(t, "timeout"), bits)
	}
	return op(verb, s)
}

func randomDestination(t *rapid.T) kernel.Op {
	verb := randomVerb(t, kernel.Create, kernel.Create, kernel.Update, kernel.Delete)
	addr := rapid.SampledFrom([]string{
		"10.244.0.1:80", "10.244.0.2:80", "10.244.0.2:81", "[fd00:10:244::1]:80", "[fd00:10:244::2]:80",
	}).Draw(t, "address")
	weight := rapid.SampledFrom([]uint32{0, 1, 2, 70000}).Draw(t, "weight")
	return op(verb, behind(rapid.SampledFrom(randomKeys).Draw(t, "key"), dest(addr, weight)))
}

func randomSets() []kernel.Set {
	var list []kernel.Set
	for i, kinds := range [][2]kernel.SetType{
		{kernel.HashIP, kernel.HashIPPort}, {kernel.HashIPPort, kernel.HashIPPortNet}, {kernel.HashIPPortIP, kernel.HashIP},
	} {
		name := fmt.Sprintf("%sR%d", SetPrefix, i)
		list = append(list,
			kernel.Set{Name: name, Type: kinds[0], Family: inet.IPv4, MaxElem: 2},
			kernel.Set{Name: name, Type: kinds[1], Family: inet.IPv6, MaxElem: 3})
	}
	return list
}

func randomSet(t *rapid.T) kernel.Op {
	verb := randomVerb(t, kernel.Create, kernel.Create, kernel.Update, kernel.Delete)
	return op(verb, rapid.SampledFrom(randomSets()).Draw(t, "set"))
}

func randomMember(t *rapid.T) kernel.Op {
	verb := randomVerb(t, kernel.Create, kernel.Create, kernel.Delete)
	e := kernel.Element{Addr: ip4(96, 1)}
	if rapid.Bool().Draw(t, "v6") {
		e.Addr = ip6(96, 1)
	}
	shape := rapid.IntRange(0, 2).Draw(t, "shape")
	if shape > 0 {
		e.Protocol, e.Port = inet.TCP, rapid.Uint16Range(80, 83).Draw(t, "port")
	}
	s := rapid.SampledFrom(randomSets()).Draw(t, "set")
	if shape > 1 {
		e.Addr2 = e.Addr
	}
	if shape > 1 && s.Type == kernel.HashIPPortNet { // see memberRefusals
		e.Bits2 = uint8(rapid.IntRange(1, e.Addr.BitLen()).Draw(t, "bits"))
		e.Addr2 = netip.PrefixFrom(e.Addr2, int(e.Bits2)).Masked().Addr()
	}
	return op(verb, member(s, e))
}

func randomAddress(t *rapid.T) kernel.Op {
	a := rapid.SampledFrom(slices.Concat(randomKeys)).Draw(t, "address").Addr.Addr()
	return op(randomVerb(t, kernel.Create, kernel.Create, kernel.Delete), bound(a))
}

func randomDevice(t *rapid.T) kernel.Op {
	return op(randomVerb(t, kernel.Create, kernel.Create, kernel.Delete), kernel.DummyDevice{})
}

func randomRules(t *rapid.T) kernel.Op {
	verb := randomVerb(t, kernel.Ensure, kernel.Ensure, kernel.Delete)
	if rapid.Bool().Draw(t, "match a set") {
		return op(verb, matching(rapid.SampledFrom(randomSets()).Draw(t, "set")))
	}
	family := rapid.SampledFrom(inet.Families).Draw(t, "family")
	return op(verb, typical(family, rapid.IntRange(0, 2).Draw(t, "rules")))
}

func randomSysctl(t *rapid.T) kernel.Op {
	name := rapid.SampledFrom(Sysctls).Draw(t, "name")
	return op(kernel.Ensure, kernel.SysctlSetting{Name: name, Value: rapid.SampledFrom([]string{"0", "1"}).Draw(t, "value")})
}

func randomTimeouts(t *rapid.T) kernel.Op {
	draw := func(label string) time.Duration {
		return rapid.SampledFrom([]time.Duration{0, 0, time.Second, time.Minute}).Draw(t, label)
	}
	return op(kernel.Ensure, kernel.Timeouts{TCP: draw("tcp"), TCPFin: draw("tcp fin"), UDP: draw("udp")})
}
