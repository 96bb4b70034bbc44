package live

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// Before IPVS takes over from nftables, it has the agent's virtual servers, and those that changed in the meantime. A virtual server of another
// program prevents that, and stays as it is. Once the rules balance no longer, nothing is copied.
func TestAdoptServers(t *testing.T) {
	labtest.NetNS(t)
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Protocol: inet.TCP} // it has an owner record
	other := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.2:443"), Protocol: inet.TCP}
	destination := func(last byte) kernel.ServerDestination {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, last}), 8443)
		return kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: at, Weight: uint32(last)}}
	}
	affinity := kernel.Server{Key: key, Scheduler: "wrr", Flags: kernel.FlagPersistent, Timeout: 300, MaskBits: 24}
	nftables := movable(t, Config{Mode: kernel.NFTablesOnly})
	must(t, nftables, create(oldLedger, entry, seal, affinity, kernel.Server{Key: other, Scheduler: "rr", MaskBits: 32}, destination(1), destination(2))...)
	record := fmt.Sprintf("add element inet kube-ipvs %s { 192.0.2.0 : 10.244.0.1 . 8443 }", kernel.ClientsMap(key))
	labtest.Run(t, "nft", record)
	k := movable(t, Config{Mode: kernel.IPVSWithNFTables})
	ipvsadm := func(args ...string) { t.Helper(); labtest.Run(t, "ipvsadm", args...) }

	copies := map[kernel.ServerKey]struct{}{}
	ipvsadm("-A", "-t", key.Addr.String(), "-s", "wlc")
	if _, err := k.PrepareMove(t.Context(), copies); err == nil || !strings.Contains(err.Error(), key.String()) {
		t.Errorf("another program's virtual server is in IPVS: %v", err)
	}
	has(t, kernel.IPVSWithNFTables, "after a failure", key.String()+" -s wlc")
	ipvsadm("-D", "-t", key.Addr.String())

	if clients, err := k.PrepareMove(t.Context(), copies); err != nil || clients != 1 {
		t.Errorf("%d clients, %v", clients, err)
	}
	const saved = "-t 10.96.0.1:443 -s wrr -p 300 -M 255.255.255.0"
	has(t, kernel.IPVSWithNFTables, "after the copy", saved, "-r 10.244.0.1:8443 -m -w 1", "-r 10.244.0.2:8443 -m -w 2")

	must(t, nftables, kernel.Op{Verb: kernel.Delete, Object: destination(1)}, kernel.Op{Verb: kernel.Create, Object: destination(3)})
	if err := k.AdoptRecords(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, kernel.IPVSWithNFTables, "after a change", saved, "-r 10.244.0.1:8443 -m -w 0", "-r 10.244.0.2:8443 -m -w 2", "-r 10.244.0.3:8443 -m -w 3")

	must(t, nftables, kernel.Op{Verb: kernel.Delete, Object: kernel.Server{Key: key}})
	if err := k.AdoptRecords(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, kernel.IPVSWithNFTables, "after the Service is deleted")

	must(t, nftables, create(affinity, destination(1))...)
	must(t, k, kernel.Op{Verb: kernel.Ensure, Object: kernel.Ruleset{Family: inet.IPv4}})
	if err := k.AdoptRecords(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, kernel.IPVSWithNFTables, "after the rules have changed")
}

// A copy that cannot be removed after a failure is still the agent's at the next attempt. A copy that the kernel keeps refusing delays the rules of
// the other Services only for a few attempts.
func TestRefusedCopies(t *testing.T) {
	labtest.NetNS(t)
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Protocol: inet.TCP}
	nftables := movable(t, Config{Mode: kernel.NFTablesOnly})
	must(t, nftables, create(oldLedger, entry, seal, kernel.Server{Key: key, Scheduler: "rr"})...)
	k := movable(t, Config{Mode: kernel.IPVSWithNFTables})
	refused, apply, verb := errors.New("no memory"), k.adopter.apply, kernel.Create
	k.adopter.apply = func(ctx context.Context, ops []kernel.Op) []error {
		if len(ops) > 0 && ops[0].Verb == verb {
			return slices.Repeat([]error{refused}, len(ops))
		}
		return apply(ctx, ops)
	}
	for range attempts - 1 {
		if err := k.AdoptRecords(t.Context()); !errors.Is(err, refused) {
			t.Errorf("the copy was refused: %v", err)
		}
	}
	if err := k.AdoptRecords(t.Context()); err != nil {
		t.Errorf("after %d attempts: %v", attempts, err)
	}

	verb = kernel.Delete
	copies := map[kernel.ServerKey]struct{}{}
	if _, err := k.PrepareMove(t.Context(), copies); err != nil {
		t.Fatal(err)
	}
	if err := k.adopter.undo(t.Context()); !errors.Is(err, refused) || len(copies) != 1 {
		t.Errorf("%d copies are known, error %v", len(copies), err)
	}
	if _, err := movable(t, Config{Mode: kernel.IPVSWithNFTables}).PrepareMove(t.Context(), copies); err != nil {
		t.Errorf("the next attempt: %v", err)
	}

	must(t, nftables, kernel.Op{Verb: kernel.Delete, Object: kernel.Server{Key: key}})
	if _, err := k.PrepareMove(t.Context(), copies); !errors.Is(err, refused) || len(copies) != 1 {
		t.Errorf("after the Service is deleted, %d copies are known, error %v", len(copies), err)
	}
	verb = kernel.Create
	if _, err := k.PrepareMove(t.Context(), copies); err != nil || len(copies) > 0 {
		t.Errorf("after the Service is deleted, %d copies are left, error %v", len(copies), err)
	}
	has(t, kernel.IPVSWithNFTables, "after the Service is deleted")
}

// At a restart with nftables, the virtual servers are copied in the other direction.
func TestAdoptServersFromIPVS(t *testing.T) {
	labtest.NetNS(t)
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Protocol: inet.TCP}
	other := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.2:443"), Protocol: inet.TCP}
	to := kernel.Destination{Addr: netip.MustParseAddrPort("10.244.0.1:8443"), Weight: 1}
	before := movable(t, Config{Mode: kernel.IPVSWithNFTables})
	must(t, before, create(oldLedger, entry, seal, kernel.Server{Key: key, Scheduler: "rr"}, kernel.ServerDestination{Server: key, Destination: to},
		kernel.Server{Key: other, Scheduler: "rr"})...)
	after := movable(t, Config{Mode: kernel.NFTablesOnly})
	for range 2 {
		if err := after.AdoptRecords(t.Context()); err != nil {
			t.Fatal(err)
		}
		has(t, kernel.NFTablesOnly, "after the copy", "-t 10.96.0.1:443 -s rr", "-r 10.244.0.1:8443 -m -w 1")
	}
}

func has(t *testing.T, mode kernel.Mode, when string, want ...string) {
	t.Helper()
	servers, err := ReadServers(t.Context(), mode)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range servers {
		got = append(got, s.Server.String())
		for _, d := range s.Destinations {
			got = append(got, d.Destination.String())
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s, %s has (-want +got):\n%s", when, mode.DataPlane(), d)
	}
}
