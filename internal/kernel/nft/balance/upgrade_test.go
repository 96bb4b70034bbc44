package balance

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// asVersion010 changes the table into what version 0.1.0 would have written for these frontends with three slots.
func asVersion010(t *testing.T, b *Balancer, keys ...kernel.ServerKey) {
	t.Helper()
	pick := picker{family: inet.IPv4, slots: 3}
	reqs := []nlbatch.Request{entriesRequest(unix.NFT_MSG_DELSETELEM, 0, *pick.entry())}
	for _, key := range keys {
		f := (&frontend{}).with(b.known.frontends[key].frontend.Server, endpoints(3, 1))
		now, before := frontendEntry(f), *f
		before.old = true
		reqs = append(reqs, entriesRequest(unix.NFT_MSG_DELSETELEM, 0, *now), entriesRequest(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, *frontendEntry(&before)))
	}
	lookups := entrance(inet.IPv4)
	lookups.rules = []rule{lookups.rules[1], lookups.rules[3]}
	if err := b.conn.Commit(t.Context(), append(reqs, lookups.Requests()...)); err != nil {
		t.Fatal(err)
	}
}

// An agent adopts the frontends of version 0.1.0 without a write, and moves each of them with its next change.
func TestAdoptsFrontendsOfVersion010(t *testing.T) {
	for _, outdated := range []bool{false, true} {
		t.Run(fmt.Sprint("outdated numbers: ", outdated), func(t *testing.T) { adopts(t, outdated) })
	}
}

func adopts(t *testing.T, outdated bool) {
	before := openBalancer(t)
	changed, kept := server(false), server(false)
	kept.Key = numbered(1)
	for _, s := range []kernel.Server{changed, kept} {
		mustApply(t, before, kernel.Op{Verb: kernel.Create, Object: s})
		for _, d := range endpoints(3, 1) {
			mustApply(t, before, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: s.Key, Destination: d}})
		}
	}
	asVersion010(t, before, changed.Key, kept.Key)
	if outdated { // by an agent that ran before version 0.1.0
		var left []entry
		for _, s := range []kernel.Server{changed, kept} {
			e := frontendEntry(&frontend{Server: s, slots: endpoints(2, 1)})
			left = append(left, *e)
		}
		if err := before.conn.Commit(t.Context(), []nlbatch.Request{entriesRequest(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, left...)}); err != nil {
			t.Fatal(err)
		}
	} else {
		for _, name := range []string{numbersMap(inet.IPv4), pickersMap(inet.IPv4)} {
			if err := before.conn.Commit(t.Context(), []nlbatch.Request{wire.Set(name).Delete()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	after, err := New(inet.Families)
	labtest.Opened(t, after, err)
	reads := func(when string, n int) {
		t.Helper()
		have := mustRead(t, after)
		for s, n := range map[kernel.Server]int{changed: n, kept: 3} {
			if !have[s.Key].SameConfig((&frontend{}).with(s, endpoints(n, 1)).observed(false)) {
				t.Errorf("%s: read %v", when, have[s.Key])
			}
		}
	}
	reads("as version 0.1.0 left it", 3)
	mustApply(t, after, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: changed.Key, Destination: endpoint(4, 1)}})
	reads("after a change", 4)
	for name, want := range map[string]string{numbersMap(inet.IPv4): string(frontendKey(changed.Key)), frontendsMap(inet.IPv4): string(frontendKey(kept.Key))} {
		var keys []string
		err := after.conn.Elements(t.Context(), wire.Set(name), func(e wire.Element) error { keys = append(keys, e.Key); return nil })
		if err != nil || len(keys) != 1 || keys[0] != want {
			t.Errorf("%s contains %x, want %x: %v", name, keys, want, err)
		}
	}
}
