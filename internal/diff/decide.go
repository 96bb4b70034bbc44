package diff

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Scope selects what to compare.
type Scope struct {
	// All is true if everything is compared, and false if only touched objects are compared.
	All bool
	// Touched are the objects whose wanted state may have changed. Decide adds the objects that its decisions affect.
	Touched *want.Touched
	// Listed is true if the kernel state comes from a fresh listing, which may lack virtual servers and does not show connection limits.
	Listed bool
	// LookedUp reports whether a virtual server was looked up for this decision. It is nil if no virtual server was looked up.
	LookedUp func(kernel.ServerKey) bool
	// Withhold removes from Touched the objects that must wait. It may be nil.
	Withhold func(*want.Touched)
}

// Decision is the result of a comparison.
type Decision struct {
	// Unclear lists the virtual servers that must be looked up first. All other fields are then empty.
	Unclear []kernel.ServerKey
	Plan    Plan

	// The remaining fields are set only if everything was compared.

	// Moved is true if a foreign virtual server no longer blocks one of ours, or if a lingering virtual server has lost its last
	// connection.
	Moved bool
	// Ours are the kernel's virtual servers that belong to the agent.
	Ours      map[kernel.ServerKey]struct{}
	Leftovers Leftovers
}

// Decide compares the target with the kernel state. It first decides which virtual servers are foreign and which linger.
//
// An incremental sync removes only objects with an owner record: the remembered state may contain foreign objects from the last full read, and
// another program may now use an address that a Service used before.
func Decide(t *Target, have *kernel.State, s Scope, opt Options) (d Decision) {
	if !s.All {
		t.settleLingering(have, t.nearTouched(s.Touched), s.Touched, opt)
		if s.Withhold != nil {
			s.Withhold(s.Touched)
		}
	}
	if d.Unclear = t.unclear(have, s, opt); len(d.Unclear) > 0 {
		return d
	}
	if s.All {
		return t.decideAll(have, s.Touched, opt)
	}
	for _, key := range foreign(t, have, claims(t, have, s.Touched, opt), opt) {
		t.occupy(key, s.Touched)
	}
	opt.updateWeights(s.Touched)
	d.Plan = planTouched(t, have, s.Touched, opt)
	return d
}

func (t *Target) decideAll(have *kernel.State, touched *want.Touched, opt Options) (d Decision) {
	for key, server := range maps.Clone(t.foreign) {
		if _, exists := have.Servers[key]; !exists {
			d.Moved = true
			t.forget(server, touched)
		}
	}
	d.Moved = t.settleLingering(have, t.mayLinger(have), touched, opt) || d.Moved
	for _, key := range foreign(t, have, t.Keys(), opt) {
		t.occupy(key, touched)
	}
	opt.updateWeights(nil)
	d.Leftovers = AllLeftovers(t, have, opt)
	d.Plan = planAll(t, have, opt)
	d.Ours = ours(t, have, opt)
	return d
}

func (t *Target) mayLinger(have *kernel.State) map[kernel.ServerKey]struct{} {
	keys := make(map[kernel.ServerKey]struct{}, len(have.Servers))
	for key := range have.Servers {
		keys[key] = struct{}{}
	}
	for key := range t.lingering {
		keys[key] = struct{}{}
	}
	return keys
}

// nearTouched lists the virtual servers that may just have been replaced, and lingering virtual servers at the same addresses. A Service
// may have thousands of virtual servers, so a full check would be slow.
func (t *Target) nearTouched(touched *want.Touched) map[kernel.ServerKey]struct{} {
	near, at := maps.Clone(touched.Servers), map[netip.Addr]struct{}{}
	for key := range touched.Servers {
		at[key.Addr.Addr()] = struct{}{}
	}
	for addr := range at {
		for _, key := range t.lingersAt[addr] {
			near[key] = struct{}{}
		}
	}
	return near
}

func (t *Target) unclear(have *kernel.State, s Scope, opt Options) []kernel.ServerKey {
	var keys []kernel.ServerKey
	if s.Listed {
		keys = append(missing(t, have, opt), MayHaveLimits(t, have)...)
	} else {
		keys = claims(t, have, s.Touched, opt)
	}
	return slices.DeleteFunc(keys, func(key kernel.ServerKey) bool { return s.LookedUp != nil && s.LookedUp(key) })
}
