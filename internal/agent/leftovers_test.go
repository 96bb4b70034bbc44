package agent_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// An audit that finds no difference looks for leftovers only among the objects that can be leftovers. It finds as many as among all objects.
func TestLeftoversOfAChangingCluster(t *testing.T) {
	found := 0
	bubble(t, func(w *world) {
		r := rand.New(rand.NewPCG(w.faults.Seed, 3))
		w.unwatched = true
		w.fake.OnOp(nil)
		w.config.AuditInterval = 3 * time.Second
		w.start()
		for range 300 {
			switch r.IntN(4) {
			case 0:
				w.damage(leaveSomething(r))
			default:
				oneOfTwoPorts(r, w)
			}
			w.sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
			if !w.agent.KnowsKernel() {
				continue
			}
			suspected, all := w.agent.Leftovers()
			if d := cmp.Diff(all, suspected, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.EquateEmpty()); d != "" {
				w.Fatalf("(-all +found):\n%s", d)
			}
			found += len(all.Servers) + len(all.Addresses)
		}
	})
	if found == 0 {
		t.Error("there were no leftovers")
	}
}

// oneOfTwoPorts changes a Service. Two Services share each address.
func oneOfTwoPorts(r *rand.Rand, w *world) {
	n := r.IntN(6)
	svc := compiletest.Service(fmt.Sprint("svc-", n), fmt.Sprint("10.96.1.", n/2), "10.244.0.1")
	svc.Ports[0].Port = 80 + uint16(n%2)
	if r.IntN(2) == 0 {
		w.remove(svc.ID.Name)
		return
	}
	w.put(svc)
}

// leaveSomething creates or deletes an object that another program could have left at such an address.
func leaveSomething(r *rand.Rand) func(*kerneltest.Fake) error {
	key := tcp(fmt.Sprintf("10.96.1.%d:%d", r.IntN(3), 80+r.IntN(2)))
	kind := r.IntN(4)
	return func(f *kerneltest.Fake) error {
		switch kind { // errors do not matter: the object may exist already, or no more
		case 0, 1:
			_ = foreign(key)(f)
		case 2:
			_ = f.AddAddress(kernel.BoundAddress{Addr: key.Addr.Addr()})
		case 3:
			_ = f.DelServer(key)
		}
		return nil
	}
}
