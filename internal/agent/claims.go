package agent

import (
	"context"
	"fmt"
	"maps"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// lookBeforeClaiming looks up the virtual servers that are about to be made: one that stands there already is somebody
// else's, and must not get an entry in our ledger (I5).
func (a *Agent) lookBeforeClaiming(ctx context.Context, touched *want.Touched, opt diff.Options) error {
	w := a.cluster.Want()
	claims := diff.Claims(w, a.have, maps.Keys(touched.Servers), opt)
	if len(claims) == 0 {
		return nil
	}
	found, err := a.lookup(ctx, claims)
	if err != nil {
		return fmt.Errorf("look for virtual servers of others: %w", err)
	}
	for _, key := range diff.Foreign(w, a.have, claims, opt) {
		w.SetForeign(key, true, touched)
	}
	for key := range found {
		if w.Servers[key] != nil {
			a.ours[key] = struct{}{}
		}
	}
	return nil
}

// unclaim takes back our ledger entry of a virtual server that turns out to be there already, though it was looked for before
// we made the entry or the server: somebody made it since. Until the entry is gone the server counts as contested.
func (a *Agent) unclaim(key kernel.ServerKey) kernel.Op {
	a.contested[key] = struct{}{}
	delete(a.ours, key)
	return kernel.Op{Verb: kernel.Delete, Object: want.LedgerEntry(a.cluster.Want().Base.Ledger, key)}
}

// forgetContested forgets the contested keys about which the kernel now tells the truth: nobody's server stands there, or the
// ledger has no entry.
func (a *Agent) forgetContested() {
	ledger := a.cluster.Want().Base.Ledger
	for key := range a.contested {
		if _, stands := a.have.Servers[key]; !stands || !a.have.HasMember(want.LedgerEntry(ledger, key)) {
			delete(a.contested, key)
		}
	}
}
