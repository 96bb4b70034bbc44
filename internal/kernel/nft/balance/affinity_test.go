package balance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func openBalancer(t *testing.T) *Balancer {
	t.Helper()
	labtest.NetNSNoIPVS(t)
	b, err := New(inet.Families)
	labtest.Opened(t, b, err)
	return b
}

func sticky(key kernel.ServerKey, mask uint8, dests ...kernel.Destination) []kernel.Op {
	s := kernel.Server{Key: key, Scheduler: "rr", Flags: kernel.FlagPersistent, Timeout: 10800, MaskBits: mask}
	ops := []kernel.Op{{Verb: kernel.Create, Object: s}}
	for _, d := range dests {
		ops = append(ops, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: key, Destination: d}})
	}
	return ops
}

func remove(key kernel.ServerKey, d kernel.Destination) kernel.Op {
	return kernel.Op{Verb: kernel.Delete, Object: kernel.ServerDestination{Server: key, Destination: d}}
}

func remember(t *testing.T, key kernel.ServerKey, client string, d kernel.Destination) {
	t.Helper()
	labtest.Run(t, "nft", "add", "element", "inet", wire.TableName, kernel.ClientsMap(key), fmt.Sprintf("{ %s timeout 1h : %s . %d }", client, d.Addr.Addr(), d.Addr.Port()))
}

func TestClientsLeaveAnEndpointThatIsGone(t *testing.T) {
	b := openBalancer(t)
	first, second := endpoint(1, 1), endpoint(2, 1)
	mustApply(t, b, sticky(shop, 32, first, second)...)
	remember(t, shop, "198.51.100.1", first)
	remember(t, shop, "198.51.100.2", second)
	mustApply(t, b, remove(shop, first))
	if chain := labtest.Run(t, "nft", "list", "chain", "inet", wire.TableName, affinity{key: shop}.name()); !strings.Contains(chain, "a client of 10.244.0.1:8080, which is gone") {
		t.Errorf("no rule:\n%s", chain)
	}
	if have := mustRead(t, b)[shop]; have.Scheduler != "rr" {
		t.Errorf("read %v", have)
	}
	f, err := b.Forgetter(wire.NewWrites())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	records, err := f.records(t.Context(), kernel.ClientsMap(shop))
	if err != nil || len(records) != 1 || records[0].Value != string(endpointBytes(second.Addr)) {
		t.Errorf("records %v, %v", records, err)
	}
	if chain := labtest.Run(t, "nft", "list", "chain", "inet", wire.TableName, affinity{key: shop}.name()); strings.Contains(chain, "gone") {
		t.Errorf("the rule still exists:\n%s", chain)
	}
	mustApply(t, b, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: shop, Destination: endpoint(3, 1)}})
	if chain := labtest.Run(t, "nft", "list", "chain", "inet", wire.TableName, affinity{key: shop}.name()); strings.Contains(chain, "gone") {
		t.Errorf("the rule is back:\n%s", chain)
	}
}

// TestForgetsForAnEarlierAgent: an agent that ended before it could forget has left rules, which its successor reads.
func TestForgetsForAnEarlierAgent(t *testing.T) {
	earlier := openBalancer(t)
	first, second := endpoint(1, 1), endpoint(2, 1)
	mustApply(t, earlier, sticky(shop, 32, first, second)...)
	remember(t, shop, "198.51.100.1", first)
	mustApply(t, earlier, remove(shop, first))
	b, err := New(inet.Families)
	labtest.Opened(t, b, err)
	mustRead(t, b)
	f, err := b.Forgetter(wire.NewWrites())
	labtest.Opened(t, f, err)
	if err := f.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	records, err := f.records(t.Context(), kernel.ClientsMap(shop))
	if err != nil || len(records) > 0 {
		t.Errorf("records %v, %v", records, err)
	}
	if chain := labtest.Run(t, "nft", "list", "chain", "inet", wire.TableName, affinity{key: shop}.name()); strings.Contains(chain, "gone") {
		t.Errorf("the rule still exists:\n%s", chain)
	}
}

// TestReturnedEndpointKeepsItsClients: if a removed endpoint returns while Forget runs, the records of its new clients stay, and Forget ends.
func TestReturnedEndpointKeepsItsClients(t *testing.T) {
	b := openBalancer(t)
	first, second := endpoint(1, 1), endpoint(2, 1)
	mustApply(t, b, sticky(shop, 32, first, second)...)
	remember(t, shop, "198.51.100.1", first)
	mustApply(t, b, remove(shop, first))
	f, err := b.Forgetter(wire.NewWrites())
	labtest.Opened(t, f, err)
	lists := 0
	f.conn.Meanwhile = func() {
		if lists++; lists == 3 { // after the first list of records, whose record Forget may delete
			mustApply(t, b, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: shop, Destination: first}})
		}
		if lists >= 3 && lists < 100 {
			remember(t, shop, fmt.Sprintf("198.51.100.%d", lists), first)
		}
	}
	if err := f.Forget(t.Context()); err != nil {
		t.Error(err)
	}
	f.conn.Meanwhile = nil
	if records, err := f.records(t.Context(), kernel.ClientsMap(shop)); err != nil || lists < 3 || len(records) < lists-2 {
		t.Errorf("%d records after %d lists, %v", len(records), lists, err)
	}
}

func TestForgetsWhileEndpointsChange(t *testing.T) {
	b := openBalancer(t)
	mustApply(t, b, sticky(shop, 32, endpoint(1, 1), endpoint(2, 1))...)
	f, err := b.Forgetter(wire.NewWrites())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	changed, ended := make(chan struct{}, 1), make(chan error)
	go func() {
		var errs []error
		for range changed {
			errs = append(errs, f.Forget(t.Context()))
		}
		ended <- errors.Join(append(errs, f.Forget(t.Context()))...)
	}()
	for i := range 30 {
		old, next := endpoint(i+1, 1), endpoint(i+3, 1)
		remember(t, shop, fmt.Sprintf("198.51.100.%d", i), old)
		mustApply(t, b, remove(shop, old), kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: shop, Destination: next}})
		changed <- struct{}{}
	}
	close(changed)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if chain := labtest.Run(t, "nft", "list", "chain", "inet", wire.TableName, affinity{key: shop}.name()); strings.Contains(chain, "gone") {
		t.Errorf("rules of removed endpoints still exist:\n%s", chain)
	}
	if records, err := f.records(t.Context(), kernel.ClientsMap(shop)); err != nil || len(records) > 0 {
		t.Errorf("%d records still exist, %v", len(records), err)
	}
	if have := mustRead(t, b)[shop]; have.Scheduler != "rr" || len(have.Destinations) != 2 {
		t.Errorf("read %v", have)
	}
}

func TestFewChainsAreLeft(t *testing.T) {
	b := openBalancer(t)
	chains := func() (picks int, others []string) {
		t.Helper()
		all, err := b.conn.Chains(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		others = slices.DeleteFunc(slices.Clone(all), func(name string) bool { _, picks := pickerOf(name); return picks })
		return len(all) - len(others), others
	}
	mustApply(t, b, sticky(shop, 32)...)
	for i := range 200 {
		op := kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: shop, Destination: endpoint(i+1, 1)}}
		mustApply(t, b, op)
		mustApply(t, b, kernel.Op{Verb: kernel.Update, Object: kernel.Server{
			Key: shop, Scheduler: "rr", Flags: kernel.FlagPersistent, Timeout: uint32(i + 1), MaskBits: uint8(i%32 + 1),
		}})
	}
	want := []string{"affinity4.10.96.0.1.tcp.80", "balance4", "record4-output", "record4-prerouting", "record4.10.96.0.1.tcp.80"}
	if picks, others := chains(); picks > spare+1 || !slices.Equal(others, want) {
		t.Errorf("%d chains pick a slot; the others are %v, want %v", picks, others, want)
	}
	mustApply(t, b, kernel.Op{Verb: kernel.Update, Object: server(false)})
	sets, err := b.conn.Sets(t.Context())
	if _, left := sets[kernel.ClientsMap(shop)]; left || err != nil || len(sets) != len(sharedMapNames[inet.IPv4]) {
		t.Errorf("maps %v, %v", sets, err)
	}
	if _, others := chains(); len(others) != 3 {
		t.Errorf("chains %v", others)
	}
}

// Some versions of nft abort if a rule computes with the result of a map.
func TestNFTShowsBalancing(t *testing.T) {
	b := openBalancer(t)
	six := kernel.ServerKey{Addr: netip.MustParseAddrPort("[fd00::1]:53"), Protocol: inet.UDP}
	dest := func(a string) kernel.Destination {
		return kernel.Destination{Addr: netip.MustParseAddrPort(a), Weight: 1}
	}
	mustApply(t, b, sticky(shop, 24, endpoint(1, 1), endpoint(2, 1))...)
	mustApply(t, b, sticky(six, 64, dest("[fd00::2]:53"), dest("[fd00::3]:53"))...)
	mustApply(t, b, sticky(shop.AllPorts(), 32, dest("10.244.0.1:0"), dest("10.244.0.2:0"))...)
	mustApply(t, b, remove(shop, endpoint(1, 1)), remove(six, dest("[fd00::2]:53")), remove(shop.AllPorts(), dest("10.244.0.1:0")))
	out := labtest.Run(t, "nft", "list", "ruleset")
	for _, shown := range []string{
		"& 0xffffff00 map @clients4.10.96.0.1.tcp.80", "& 0xffffffffffffffff0000000000000000 map @clients6.fd00--1.udp.53", "goto pick4.1", "goto all-ports4.1", "goto pick6.1",
		"update @clients4.10.96.0.1.tcp.80", "size 65536", "vmap @pickers4", "vmap @frontends4",
	} {
		if !strings.Contains(out, shown) {
			t.Errorf("nft does not show %q:\n%s", shown, out)
		}
	}
}

// town is a network namespace in which processes connect to virtual servers.
type town struct {
	*Balancer
	t *testing.T
}

func newTown(t *testing.T) town {
	b := openBalancer(t)
	labtest.Run(t, "nft", "add table inet kube-ipvs; add chain inet kube-ipvs balance4; add chain inet kube-ipvs enter { type nat hook output priority -101; };"+
		"add rule inet kube-ipvs enter meta nfproto ipv4 jump balance4")
	return town{b, t}
}

func (w town) serve(vip string, n int) kernel.ServerKey {
	w.t.Helper()
	labtest.Run(w.t, "ip", "addr", "add", vip, "dev", "lo")
	key := kernel.ServerKey{Addr: netip.AddrPortFrom(netip.MustParseAddr(vip), 80), Protocol: inet.TCP}
	var dests []kernel.Destination
	for range n {
		dests = append(dests, w.answer("127.0.1.1:0"))
	}
	slices.SortFunc(dests, kernel.Destination.Compare)
	mustApply(w.t, w.Balancer, sticky(key, 32, dests...)...)
	return key
}

func (w town) answer(at string) kernel.Destination {
	w.t.Helper()
	l, err := net.Listen("tcp4", at)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, addr)
			c.Close()
		}
	}()
	return kernel.Destination{Addr: addr, Weight: 1}
}

func (w town) ask(client string, key kernel.ServerKey) netip.AddrPort {
	w.t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).Dial("tcp4", key.Addr.String())
	if err != nil {
		w.t.Fatalf("client %s: %v", client, err)
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return netip.MustParseAddrPort(string(text))
}

func (w town) keeps(client string, key kernel.ServerKey) bool {
	answered := map[netip.AddrPort]bool{}
	for range 10 {
		answered[w.ask(client, key)] = true
	}
	return len(answered) == 1
}

// With too few slots, endpoints with a small weight would get too many connections.
func TestSharesOfConnections(t *testing.T) {
	w := newTown(t)
	key := w.serve("10.96.0.1", 0)
	var dests []kernel.Destination
	small := map[netip.AddrPort]bool{}
	for i := range 33 {
		d := w.answer("127.0.1.1:0")
		if small[d.Addr] = i < 30; i >= 30 {
			d.Weight = 1000
		}
		dests = append(dests, d)
	}
	slices.SortFunc(dests, kernel.Destination.Compare)
	for _, d := range dests {
		mustApply(t, w.Balancer, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: key, Destination: d}})
	}
	mustApply(t, w.Balancer, kernel.Op{Verb: kernel.Update, Object: kernel.Server{Key: key, Scheduler: "rr"}})
	const all = 1500
	few := 0
	for range all {
		if small[w.ask("127.0.0.1", key)] {
			few++
		}
	}
	if few > 45 { // 15 on average; by chance, less than one run in a million exceeds this
		t.Errorf("endpoints with a small weight got %d of %d connections, want about 15", few, all)
	}
}

func TestPortBesideAllPorts(t *testing.T) {
	w := newTown(t)
	wide := w.serve("10.96.0.1", 0)
	mustApply(t, w.Balancer, kernel.Op{Verb: kernel.Delete, Object: kernel.Server{Key: wide}})
	theirs, evil := w.answer("127.0.1.1:80"), w.answer("127.0.1.2:81")
	w.answer("127.0.1.2:80")
	port := kernel.ServerKey{Addr: netip.AddrPortFrom(wide.Addr.Addr(), 81), Protocol: inet.TCP}
	mustApply(t, w.Balancer, sticky(wide.AllPorts(), 32, kernel.Destination{Addr: netip.AddrPortFrom(theirs.Addr.Addr(), 0), Weight: 1})...)
	for _, flags := range []uint32{0, kernel.FlagPersistent, 0} {
		s := kernel.Server{Key: port, Scheduler: "rr", Flags: flags, Timeout: 60 * flags, MaskBits: 32}
		mustApply(t, w.Balancer, kernel.Op{Verb: kernel.Create, Object: s}, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: port, Destination: evil}})
		for range 2 {
			if a, b := w.ask("127.0.0.9", port), w.ask("127.0.0.9", wide); a != evil.Addr || b != theirs.Addr {
				t.Errorf("flags %d: a client reaches %s, and %s on another port", flags, a, b)
			}
		}
		if have := mustRead(t, w.Balancer); have[port].Scheduler != "rr" || have[wide.AllPorts()].Scheduler != "rr" {
			t.Errorf("flags %d: read %v", flags, have)
		}
		mustApply(t, w.Balancer, kernel.Op{Verb: kernel.Delete, Object: s})
	}
}

func TestFullMapOfClients(t *testing.T) {
	w := newTown(t)
	full, other := w.serve("10.96.0.1", 8), w.serve("10.96.0.2", 8)
	if !w.keeps("127.0.0.9", full) {
		t.Error("the first client changed its endpoint")
	}
	var all []entry
	for i := range maxClients - 1 {
		client := netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
		all = append(all, entry{kernel.ClientsMap(full), wire.Element{Key: string(client.AsSlice()), Value: string(endpointBytes(netip.MustParseAddrPort("127.0.1.1:9")))}})
	}
	for chunk := range slices.Chunk(all, wire.MaxElements) {
		if err := w.conn.Commit(t.Context(), []nlbatch.Request{entriesRequest(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, chunk...)}); err != nil {
			t.Fatal(err)
		}
	}
	if w.keeps("127.0.0.2", full) {
		t.Error("the map has room for another client")
	}
	if !w.keeps("127.0.0.9", full) || !w.keeps("127.0.0.2", other) || !w.keeps("127.0.0.3", other) {
		t.Error("an earlier client, or a client of the other frontend, changed its endpoint")
	}
	before := w.ask("127.0.0.3", other)
	mustApply(t, w.Balancer, remove(other, kernel.Destination{Addr: before}))
	if after := w.ask("127.0.0.3", other); after == before {
		t.Error("a client reaches a removed endpoint")
	}
}

// TestRepairKeepsClients: a rule of another program breaks the frontend, but does not change which records are right.
func TestRepairKeepsClients(t *testing.T) {
	b := openBalancer(t)
	first, second := endpoint(1, 1), endpoint(2, 1)
	create := sticky(shop, 32, first, second)
	mustApply(t, b, create...)
	remember(t, shop, "198.51.100.1", first)
	remember(t, shop, "198.51.100.2", second)
	mustApply(t, b, remove(shop, first))
	records := func() int {
		n, err := b.Records(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	repair := func(command string) {
		labtest.Run(t, "nft", command)
		if have := mustRead(t, b)[shop]; have.Scheduler != BrokenScheduler || len(have.Destinations) != 1 {
			t.Fatalf("%s: read %v", command, have)
		}
		mustApply(t, b, kernel.Op{Verb: kernel.Update, Object: create[0].Object})
		if have := mustRead(t, b)[shop]; have.Scheduler != "rr" || len(have.Destinations) != 1 {
			t.Errorf("%s: repaired to %v", command, have)
		}
	}
	repair("insert rule inet kube-ipvs balance4 counter")
	if chain := labtest.Run(t, "nft", "list", "chain", "inet", wire.TableName, affinity{key: shop}.name()); records() != 2 || !strings.Contains(chain, "gone") {
		t.Errorf("%d records; the chain is\n%s", records(), chain)
	}
	repair("flush chain inet kube-ipvs " + affinity{key: shop}.name())
	if n := records(); n != 0 {
		t.Errorf("%d records, although the removed endpoints are unknown", n)
	}
}

// TestClientMapOfAKilledAgent: the records in a client map without a chain may name endpoints that no longer exist.
func TestClientMapOfAKilledAgent(t *testing.T) {
	b := openBalancer(t)
	mustApply(t, b, kernel.Op{Verb: kernel.Create, Object: server(false)})
	if err := b.conn.Commit(t.Context(), []nlbatch.Request{affinityMap(shop)}); err != nil {
		t.Fatal(err)
	}
	remember(t, shop, "198.51.100.1", endpoint(1, 1))
	create := sticky(shop, 32, endpoint(2, 1))
	create[0].Verb = kernel.Update
	mustApply(t, b, create...)
	if n, err := b.Records(t.Context()); n != 0 || err != nil {
		t.Errorf("%d records remain, %v", n, err)
	}
	mustApply(t, b, kernel.Op{Verb: kernel.Delete, Object: create[0].Object})
	if left, err := b.conn.Table(t.Context()); err != nil || left.Exists {
		t.Errorf("the table still exists: %v", err)
	}
}
