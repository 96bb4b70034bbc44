package ipvs

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	lib "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func openBackend(t testing.TB) (*Backend, *labtest.Namespace) {
	t.Helper()
	ns := labtest.NetNS(t)
	return newBackend(t), ns
}

func newBackend(t testing.TB) *Backend {
	t.Helper()
	b, err := New()
	labtest.Opened(t, b, err)
	return b
}

func op(v kernel.Verb, o kernel.Object) kernel.Op { return kernel.Op{Verb: v, Object: o} }

func must(t testing.TB, b *Backend, ops ...kernel.Op) {
	t.Helper()
	if err := errors.Join(b.Apply(t.Context(), ops)...); err != nil {
		t.Fatal(err)
	}
}

func apply(t testing.TB, b *Backend, v kernel.Verb, o kernel.Object) error {
	t.Helper()
	return b.Apply(t.Context(), []kernel.Op{op(v, o)})[0]
}

type table map[kernel.ServerKey]kernel.ObservedServer

func readAll(t testing.TB, b *Backend) table {
	t.Helper()
	servers, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return servers
}

func diffTables(want, got table) string { return cmp.Diff(want, got, compareAddrs) }

func server(addr string, p inet.Protocol) kernel.Server {
	s := kernel.Server{Key: procKey(addr, p), Scheduler: "rr"}
	s.MaskBits = uint8(s.Key.Family().Bits())
	return s
}

func destOf(s kernel.Server, addr string, weight uint32) kernel.ServerDestination {
	return kernel.ServerDestination{Server: s.Key, Destination: procDest(addr, weight).Destination}
}

// randomAddr returns an address that is unicast in a namespace with only a loopback interface.
func randomAddr(r *rand.Rand, f inet.Family) netip.AddrPort {
	b := binary.BigEndian.AppendUint32([]byte{10}, r.Uint32())[:4]
	if f == inet.IPv6 {
		b = binary.BigEndian.AppendUint64([]byte{0xfd, 0, 0, 0, 0, 0, 0, 1}, r.Uint64())
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(1+r.IntN(65535)))
}

func randomServer(r *rand.Rand) kernel.Server {
	f := inet.Families[r.IntN(2)]
	s := kernel.Server{
		Key: kernel.ServerKey{
			Addr:     randomAddr(r, f),
			Protocol: []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}[r.IntN(3)],
		},
		Scheduler: []string{"rr", "wrr", "lc", "wlc", "sh", "mh"}[r.IntN(6)],
		Flags:     r.Uint32() & (kernel.FlagPersistent | kernel.FlagSched1 | kernel.FlagSched2 | kernel.FlagSched3),
		MaskBits:  uint8(f.Bits()),
	}
	if s.Scheduler == "sh" || s.Scheduler == "mh" {
		s.Flags &^= kernel.FlagSched3 // these schedulers ignore the flag, and ipvsadm does not print it
	}
	if s.Key.Protocol == inet.UDP {
		s.Flags |= r.Uint32() & kernel.FlagOnePacket
	}
	if s.Flags&kernel.FlagPersistent != 0 {
		s.Timeout = uint32(1 + r.IntN(86400))
		s.MaskBits = uint8(1 + r.IntN(f.Bits()))
	}
	return s
}

func randomTable(r *rand.Rand, servers int) (table, []kernel.Op) {
	want, ops := table{}, []kernel.Op(nil)
	for len(want) < servers {
		s := randomServer(r)
		if _, twice := want[s.Key]; twice {
			continue
		}
		ops = append(ops, op(kernel.Create, s))
		observed := kernel.ObservedServer{Server: s}
		for range r.IntN(11) {
			d := kernel.Destination{Addr: randomAddr(r, s.Key.Family()), Weight: r.Uint32() >> (1 + r.IntN(31))}
			observed.Destinations = append(observed.Destinations, kernel.ObservedDestination{Destination: d})
			ops = append(ops, op(kernel.Create, kernel.ServerDestination{Server: s.Key, Destination: d}))
		}
		sortDestinations(observed.Destinations)
		want[s.Key] = observed
	}
	return want, ops
}

func TestRoundTrip(t *testing.T) {
	b, _ := openBackend(t)
	want, ops := randomTable(rand.New(rand.NewPCG(1, 2)), 300)
	must(t, b, ops...)
	if diff := diffTables(want, readAll(t, b)); diff != "" {
		t.Error("Read:", diff)
	}
	looked, err := b.Lookup(t.Context(), slices.Collect(maps.Keys(want)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffTables(want, looked); diff != "" {
		t.Error("Lookup:", diff)
	}
	if diff := diffTables(narrow(want), libraryTable(t)); diff != "" {
		t.Error("library:", diff)
	}
	if diff := cmp.Diff(lines(want), savedLines(t)); diff != "" {
		t.Error("ipvsadm:", diff)
	}

	var gone []kernel.Op
	for key, s := range want {
		if len(s.Destinations) > 0 {
			gone = append(gone, op(kernel.Delete, kernel.ServerDestination{Server: key, Destination: s.Destinations[0].Destination}))
		}
		gone = append(gone, op(kernel.Delete, kernel.Server{Key: key}))
	}
	must(t, b, gone...)
	if left := readAll(t, b); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// narrow returns the table as the library reads it, with weights truncated to 16 bits.
func narrow(all table) table {
	out := table{}
	for key, s := range all {
		s.Destinations = slices.Clone(s.Destinations)
		for i := range s.Destinations {
			s.Destinations[i].Weight &= 0xffff
		}
		out[key] = s
	}
	return out
}

func libraryTable(t testing.TB) table {
	t.Helper()
	h, err := lib.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	services, err := h.GetServices()
	if err != nil {
		t.Fatal(err)
	}
	all := table{}
	for _, svc := range services {
		s := kernel.Server{
			Key:       kernel.ServerKey{Addr: addrPort(svc.Address, svc.Port), Protocol: inet.Protocol(svc.Protocol)},
			Scheduler: svc.SchedName,
			Flags:     svc.Flags & kernel.FlagsConfigurable,
			Timeout:   svc.Timeout,
			MaskBits:  uint8(svc.Netmask),
		}
		if svc.AddressFamily == unix.AF_INET {
			s.MaskBits = uint8(bits.OnesCount32(svc.Netmask))
		}
		dests, err := h.GetDestinations(svc)
		if err != nil {
			t.Fatal(err)
		}
		observed := kernel.ObservedServer{Server: s}
		for _, d := range dests {
			observed.Destinations = append(observed.Destinations, kernel.ObservedDestination{
				Destination: kernel.Destination{Addr: addrPort(d.Address, d.Port), Weight: uint32(d.Weight)},
				Forwarding:  kernel.Forwarding(d.ConnectionFlags & lib.ConnectionFlagFwdMask),
			})
		}
		sortDestinations(observed.Destinations)
		all[s.Key] = observed
	}
	return all
}

func addrPort(ip []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

func lines(all table) []string {
	var out []string
	for key, s := range all {
		out = append(out, "-A "+s.Server.String())
		for _, d := range s.Destinations {
			out = append(out, "-a "+kernel.ServerDestination{Server: key, Destination: d.Destination}.String())
		}
	}
	slices.Sort(out)
	return out
}

func savedLines(t testing.TB) []string {
	t.Helper()
	out := strings.Split(strings.TrimSpace(labtest.Run(t, "ipvsadm -Sn")), "\n")
	slices.Sort(out)
	return out
}

func TestServerErrors(t *testing.T) {
	b, _ := openBackend(t)
	s := server("10.96.0.1:80", inet.TCP)
	unknown := s
	unknown.Scheduler = "nonesuch"
	must(t, b, op(kernel.Delete, s))
	if err := apply(t, b, kernel.Update, s); !errors.Is(err, kernel.ErrNotFound) {
		t.Error("update absent:", err)
	}
	if err := apply(t, b, kernel.Create, unknown); !errors.Is(err, kernel.ErrUnavailable) ||
		!strings.Contains(err.Error(), "modprobe ip_vs_nonesuch") {
		t.Error("create with unknown scheduler:", err)
	}
	must(t, b, op(kernel.Create, s))
	if err := apply(t, b, kernel.Create, s); !errors.Is(err, kernel.ErrExists) || !strings.Contains(err.Error(), s.String()) {
		t.Error("create existing:", err)
	}
	if err := apply(t, b, kernel.Update, unknown); !errors.Is(err, kernel.ErrUnavailable) {
		t.Error("update to unknown scheduler:", err)
	}
	if diff := diffTables(table{s.Key: {Server: s}}, readAll(t, b)); diff != "" {
		t.Error(diff)
	}
}

func TestDestinationErrors(t *testing.T) {
	b, _ := openBackend(t)
	s, absent := server("10.96.0.1:80", inet.TCP), server("10.96.0.2:80", inet.TCP)
	d := destOf(s, "10.244.0.1:8080", 1)
	must(t, b, op(kernel.Create, s), op(kernel.Delete, d), op(kernel.Delete, destOf(absent, "10.244.0.1:8080", 1)))
	for _, tt := range []struct {
		name string
		verb kernel.Verb
		d    kernel.ServerDestination
		want error
	}{
		{"update absent", kernel.Update, d, kernel.ErrNotFound},
		{"create behind absent server", kernel.Create, destOf(absent, "10.244.0.1:8080", 1), kernel.ErrNotFound},
		{"update behind absent server", kernel.Update, destOf(absent, "10.244.0.1:8080", 1), kernel.ErrNotFound},
		{"multicast", kernel.Create, destOf(s, "224.0.0.1:80", 1), unix.EINVAL},
		{"other family", kernel.Create, destOf(s, "[fd00::1]:80", 1), unix.EINVAL},
		{"negative weight", kernel.Create, destOf(s, "10.244.0.2:8080", 1<<31), unix.ERANGE},
		{"create", kernel.Create, d, nil},
		{"create existing", kernel.Create, d, kernel.ErrExists},
		{"update", kernel.Update, d, nil},
		{"delete", kernel.Delete, d, nil},
	} {
		if err := apply(t, b, tt.verb, tt.d); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestErrorsAreAttributed(t *testing.T) {
	b, _ := openBackend(t)
	r := rand.New(rand.NewPCG(5, 6))
	want, ops := randomTable(r, 200)
	var mixed []kernel.Op
	var bad []bool
	for _, o := range ops {
		mixed, bad = append(mixed, o), append(bad, false)
		switch r.IntN(4) {
		case 0: // a second time
			mixed, bad = append(mixed, o), append(bad, true)
		case 1: // impossible to send
			mixed, bad = append(mixed, op(kernel.Create, kernel.Server{})), append(bad, true)
		}
	}
	for i, err := range b.Apply(t.Context(), mixed) {
		if (err != nil) != bad[i] {
			t.Fatalf("%s: %v", mixed[i], err)
		}
	}
	if diff := diffTables(want, readAll(t, b)); diff != "" {
		t.Error(diff)
	}
}

func TestUpdates(t *testing.T) {
	b, _ := openBackend(t)
	before := server("10.96.0.1:80", inet.TCP)
	after := before
	after.Scheduler, after.Flags, after.Timeout, after.MaskBits = "sh", kernel.FlagPersistent|kernel.FlagSched1, 600, 24
	d := destOf(before, "10.244.0.1:8080", 1)
	must(t, b, op(kernel.Create, before), op(kernel.Create, d))
	for _, step := range []struct {
		op     kernel.Op
		server kernel.Server
		weight uint32
	}{
		{op(kernel.Update, after), after, 1},
		{op(kernel.Update, destOf(before, "10.244.0.1:8080", 70000)), after, 70000},
		{op(kernel.Update, destOf(before, "10.244.0.1:8080", 0)), after, 0},
		{op(kernel.Update, before), before, 0}, // flags that are not given are cleared
	} {
		stats := b.Stats()
		must(t, b, step.op)
		stats.Requests++
		stats.Sends++
		if stats != b.Stats() {
			t.Errorf("%s: %+v, want %+v", step.op, b.Stats(), stats)
		}
		want := table{before.Key: {
			Server:       step.server,
			Destinations: []kernel.ObservedDestination{procDest("10.244.0.1:8080", step.weight)},
		}}
		if diff := diffTables(want, readAll(t, b)); diff != "" {
			t.Errorf("%s: %s", step.op, diff)
		}
	}
}

func TestRequestsAreBatched(t *testing.T) {
	b, _ := openBackend(t)
	_, ops := randomTable(rand.New(rand.NewPCG(7, 8)), 400)
	before := b.Stats()
	must(t, b, ops...)
	sends := int(b.Stats().Sends - before.Sends)
	if len(ops)/sends < 64 {
		t.Errorf("%d requests needed %d sends", len(ops), sends)
	}
	before = b.Stats()
	readAll(t, b)
	if want := (nlbatch.Stats{Requests: before.Requests + 1, Sends: before.Sends + 1, Dumps: before.Dumps + 1}); b.Stats() != want {
		t.Errorf("after Read, the counts are %+v, want %+v", b.Stats(), want)
	}
}

func TestMaskDefault(t *testing.T) {
	b, _ := openBackend(t)
	for _, addr := range []string{"10.96.0.1:80", "[fd00::1]:80"} {
		want := server(addr, inet.TCP)
		want.Flags, want.Timeout = kernel.FlagPersistent, 10
		written := want
		written.MaskBits = 0
		must(t, b, op(kernel.Create, written))
		if diff := diffTables(table{want.Key: {Server: want}}, readAll(t, b)); diff != "" {
			t.Error(diff)
		}
		must(t, b, op(kernel.Delete, want))
	}
}

// In a namespace that has never had an address, the kernel cannot determine the type of a destination's address.
func TestLoopbackDown(t *testing.T) {
	labtest.NetNS(t)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t)
	s := server("10.96.0.1:80", inet.TCP)
	must(t, b, op(kernel.Create, s))
	err := apply(t, b, kernel.Create, destOf(s, "10.244.0.1:80", 1))
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "loopback interface is down") {
		t.Error(err)
	}
}
