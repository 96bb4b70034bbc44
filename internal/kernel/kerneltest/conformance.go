package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Conformance tests the behavior that every Kernel must have. It calls open once per subtest, in the subtest's goroutine.
func Conformance(t *testing.T, open Open) {
	run(t, open, parts)
	run(t, open, ruleParts)
}

// RulesConformance is the part of Conformance that depends on the iptables variant.
func RulesConformance(t *testing.T, open Open) { run(t, open, ruleParts) }

func run(t *testing.T, open Open, parts []part) {
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			b := &bench{T: t, Subject: open(t)}
			if b.Balanced && slices.Contains(ipvsOnly, p.name) {
				return
			}
			p.run(b)
		})
	}
}

// ipvsOnly lists the parts of the suite that do not apply if nftables does the load balancing.
var ipvsOnly = []string{"ForeignServers", "Timeouts"}

type part struct {
	name string
	run  func(*bench)
}

var parts = []part{
	{"ServerReadBack", serverReadBack},
	{"Schedulers", schedulersOf},
	{"ServerUpdateInPlace", serverUpdateInPlace},
	{"ServerRefusals", serverRefusals},
	{"ServerWithoutMask", serverWithoutMask},
	{"ServerDeleteIsIdempotent", serverDeleteIsIdempotent},
	{"ServerDeleteDropsDestinations", serverDeleteDropsDestinations},
	{"DestinationReadBack", destinationReadBack},
	{"DestinationEditsKeepTheOthers", destinationEditsKeepTheOthers},
	{"DestinationRefusals", destinationRefusals},
	{"DestinationLimits", destinationLimits},
	{"Lookup", lookup},
	{"ManyServers", manyServers},
	{"ForeignServers", foreignServers},
	{"SetReadBack", setReadBack},
	{"SetRefusals", setRefusals},
	{"SetFull", setFull},
	{"SetByOthers", setByOthers},
	{"MemberRefusals", memberRefusals},
	{"MemberIsIdempotent", memberIsIdempotent},
	{"ManyMembers", manyMembers},
	{"LookupMembers", lookupMembers},
	{"Device", device},
	{"Addresses", addresses},
	{"AddressRefusals", addressRefusals},
	{"LocalRoutes", localRoutes},
	{"DeviceByOthers", deviceByOthers},
	{"IPv6Off", ipv6Off},
	{"Sysctls", sysctls},
	{"Timeouts", timeouts},
	{"NodeAddresses", nodeAddresses},
	{"Flows", flows},
	{"OrderInOneBatch", orderInOneBatch},
	{"ErrorsHitOnlyTheirOps", errorsHitOnlyTheirOps},
	{"NoOps", noOps},
	{"Audits", audits},
	{"Summaries", summaries},
	{"Canceled", canceled},
	{"RandomOps", randomOps},
}

var ruleParts = []part{
	{"RulesReadBack", rulesReadBack},
	{"RulesRefusals", rulesRefusals},
	{"RulesByOthers", rulesByOthers},
	{"RulesChanged", rulesChanged},
	{"RulesDelete", rulesDelete},
	{"RuleSummaries", ruleSummaries},
	{"SetInUse", setInUse},
	{"SetReplace", setReplace},
}

type bench struct {
	*testing.T
	Subject
}

func (b *bench) apply(ops ...kernel.Op) []error {
	b.Helper()
	errs := b.Apply(context.Background(), ops)
	if len(errs) != len(ops) {
		b.Fatalf("%d errors for %d operations", len(errs), len(ops))
	}
	return errs
}

func (b *bench) must(ops ...kernel.Op) {
	b.Helper()
	for i, err := range b.apply(ops...) {
		if err != nil {
			b.Fatalf("operation %d of %d: %s: %v", i+1, len(ops), ops[i], err)
		}
	}
}

// refused applies operations that must all fail with want. If want is nil, the error must not be one of package kernel's sentinel errors.
// The state must not change.
func (b *bench) refused(want error, ops ...kernel.Op) {
	b.Helper()
	before := b.read()
	for i, err := range b.apply(ops...) {
		switch {
		case err == nil:
			b.Errorf("%s: succeeded, want %s", ops[i], meaningOf(want))
		case meaning(err) != meaningOf(want):
			b.Errorf("%s: %v (%s), want %s", ops[i], err, meaning(err), meaningOf(want))
		}
	}
	b.unchanged("refused operations", before)
}

func (b *bench) exists(creation kernel.Op) {
	b.Helper()
	before := b.read()
	holds(b, creation.String(), b.whatExists(), meaning(b.apply(creation)[0]))
	b.unchanged("creating an existing object", before)
}

// whatExists returns the expected result of creating a virtual server that already exists. If nftables does the load balancing, the
// creation succeeds.
func (b *bench) whatExists() string {
	if b.Balanced {
		return meaning(nil)
	}
	return meaning(kernel.ErrExists)
}

func (b *bench) unchanged(what string, before *kernel.State) {
	b.Helper()
	if diff := Diff(before, b.read()); diff != "" {
		b.Errorf("%s changed the kernel (-before +after):\n%s", what, diff)
	}
}

func (b *bench) read() *kernel.State {
	b.Helper()
	s, err := b.Read(context.Background())
	if err != nil {
		b.Fatalf("read: %v", err)
	}
	return s
}

func (b *bench) hasDevice() bool {
	b.Helper()
	has, err := b.HasDevice(context.Background())
	if err != nil {
		b.Fatalf("look for the device: %v", err)
	}
	return has
}

func holds[T any](b *bench, what string, want, have T) {
	b.Helper()
	if diff := diffValues(want, have); diff != "" {
		b.Errorf("%s (-want +have):\n%s", what, diff)
	}
}

// If the admin's operation failed, the rest of the test would prove nothing.
func (b *bench) byAdmin(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("admin: %v", err)
	}
}

func meaning(err error) string {
	if err == nil {
		return "done"
	}
	for _, sentinel := range []error{kernel.ErrExists, kernel.ErrNotFound, kernel.ErrUnavailable, kernel.ErrFull} {
		if errors.Is(err, sentinel) {
			return sentinel.Error()
		}
	}
	return "refused"
}

// Nil means any error except the sentinel errors.
func meaningOf(want error) string {
	if want == nil {
		return "refused"
	}
	return meaning(want)
}

func creates(objects ...kernel.Object) []kernel.Op { return ops(kernel.Create, objects...) }

func ops(verb kernel.Verb, objects ...kernel.Object) []kernel.Op {
	list := make([]kernel.Op, len(objects))
	for i, o := range objects {
		list[i] = kernel.Op{Verb: verb, Object: o}
	}
	return list
}

func op(verb kernel.Verb, object kernel.Object) kernel.Op {
	return kernel.Op{Verb: verb, Object: object}
}

func tcp(addr string) kernel.ServerKey { return key(addr, inet.TCP) }

func key(addr string, p inet.Protocol) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: p}
}

func plain(key kernel.ServerKey) kernel.Server {
	return kernel.Server{Key: key, Scheduler: "rr", MaskBits: uint8(key.Family().Bits())}
}

func persistent(s kernel.Server, timeout uint32, bits uint8) kernel.Server {
	s.Flags |= kernel.FlagPersistent
	s.Timeout, s.MaskBits = timeout, bits
	return s
}

func dest(addr string, weight uint32) kernel.Destination {
	return kernel.Destination{Addr: netip.MustParseAddrPort(addr), Weight: weight}
}

func behind(key kernel.ServerKey, d kernel.Destination) kernel.ServerDestination {
	return kernel.ServerDestination{Server: key, Destination: d}
}

func observed(s kernel.Server, destinations ...kernel.Destination) kernel.ObservedServer {
	o := kernel.ObservedServer{Server: s}
	for _, d := range destinations {
		o.Destinations = append(o.Destinations, kernel.ObservedDestination{Destination: d})
	}
	return o
}

func ip4(net byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, net, byte(n >> 8), byte(n)})
}

func ip6(net byte, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:%d::%x", net, n+1))
}
