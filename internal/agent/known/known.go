// Package known keeps a copy of the kernel's state and what the agent knows about it, such as failed operations. A
// restarted agent reads everything from the kernel again (I9).
//
// May import: diff, inet, kernel, model, want. The package performs no I/O and has no clock: callers pass the time.
package known

import (
	"errors"
	"maps"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type keySet = map[kernel.ServerKey]struct{}

// Kernel is the known state of the kernel.
type Kernel struct {
	Schedulers *Schedulers
	Refusals   *Refusals

	have    *kernel.State
	inexact bool
	// ours contains the virtual servers known to be ours, even if another program empties the ledger.
	ours keySet
	// contested contains foreign virtual servers for which the ledger may still have an owner record.
	contested  keySet
	unverified Unverified
	skipped    bool
	waiting    *want.Touched
	// written, failed and skippedLater record events since the last audit began.
	written      written
	failed       Unverified
	skippedLater bool
	writes       Writes
	// ipv4Servers caches the number of known IPv4 virtual servers. It is valid while writes.Servers equals
	// ipv4ServersAt.
	ipv4Servers   int
	ipv4ServersAt uint64
	// lost is true if the next audit must return everything, because there is no earlier audit to compare with. auditing is true once an audit has
	// begun, until its result is merged.
	lost, auditing bool
	// vanished contains the set members that another program has removed, until the agent has restored or removed them. restored is true if it has
	// restored some of them.
	vanished   map[kernel.Member]struct{}
	restored   bool
	unsettable map[kernel.SysctlSetting]error
	// failures is nil if no plan has been applied since the last full read.
	failures *diff.Failures
}

// New returns a Kernel whose state is unknown.
func New(mode kernel.Mode) *Kernel {
	return &Kernel{
		Schedulers: newSchedulers(), Refusals: newRefusals(mode), ours: keySet{}, contested: keySet{}, unverified: Unverified{}, unsettable: map[kernel.SysctlSetting]error{},
		waiting: want.NewTouched(), written: newWritten(), failed: Unverified{}, lost: true,
		vanished: map[kernel.Member]struct{}{},
	}
}

// State returns the known state of the kernel, or nil if the kernel has never been read.
func (k *Kernel) State() *kernel.State { return k.have }

// Replace replaces the known state with a full read of the kernel.
func (k *Kernel) Replace(fresh *kernel.State) {
	k.have, k.failed, k.skippedLater, k.lost = fresh, Unverified{}, false, true
	k.writes.all()
	k.Compared()
}

// Forget makes the state unknown, as it was before the first read.
func (k *Kernel) Forget() {
	k.have, k.ours, k.lost = nil, keySet{}, true
}

// Servers returns the virtual servers known to be ours.
func (k *Kernel) Servers() map[kernel.ServerKey]struct{} { return k.ours }

// Compared records a full comparison, which makes failures before the read of the kernel irrelevant.
func (k *Kernel) Compared() {
	k.failures, k.waiting = nil, want.NewTouched()
	k.unverified, k.skipped = k.failed, k.skippedLater
}

// ForgetContested ends the contest for virtual servers that a full read no longer finds, or that no longer have an
// owner record.
func (k *Kernel) ForgetContested(fresh *kernel.State, base *want.Base) {
	maps.DeleteFunc(k.contested, func(key kernel.ServerKey, _ struct{}) bool {
		_, exists := fresh.Servers[key]
		return !exists || !fresh.HasMember(want.LedgerEntry(base.Ledger, key))
	})
}

// LookedUp records the result of a lookup of virtual servers.
func (k *Kernel) LookedUp(keys []kernel.ServerKey, found map[kernel.ServerKey]kernel.ObservedServer) {
	k.writes.Servers++
	for _, key := range keys {
		k.written.servers[key] = struct{}{}
	}
	k.have.LookedUp(keys, found)
}

// SetOurs replaces the set of our virtual servers after a full read. It keeps virtual servers with unverified writes,
// because they may exist.
func (k *Kernel) SetOurs(keys map[kernel.ServerKey]struct{}) {
	for key := range k.ours {
		if k.unverified.Has(key) {
			keys[key] = struct{}{}
		}
	}
	k.ours = keys
}

// Own records that a virtual server is ours.
func (k *Kernel) Own(key kernel.ServerKey) { k.ours[key] = struct{}{} }

// Ours reports whether a virtual server is known to be ours.
func (k *Kernel) Ours(key kernel.ServerKey) bool { return has(k.ours, key) }

// Contest records that a virtual server is foreign although the ledger has an owner record for it. It stays contested
// until a full read no longer finds the virtual server or the record.
func (k *Kernel) Contest(key kernel.ServerKey) {
	k.contested[key] = struct{}{}
	delete(k.ours, key)
}

// Contested reports whether a virtual server is contested.
func (k *Kernel) Contested(key kernel.ServerKey) bool { return has(k.contested, key) }

// Unsettable returns the reason why the kernel refused an optional sysctl, or nil.
func (k *Kernel) Unsettable(s kernel.SysctlSetting) error { return k.unsettable[s] }

// Writes returns the number of changes to each part.
func (k *Kernel) Writes() Writes { return k.writes }

// IPv4Servers returns the number of known IPv4 virtual servers.
func (k *Kernel) IPv4Servers() int {
	if k.ipv4ServersAt != k.writes.Servers {
		k.ipv4Servers, k.ipv4ServersAt = 0, k.writes.Servers
		for key := range k.have.Servers {
			if key.Family() == inet.IPv4 {
				k.ipv4Servers++
			}
		}
	}
	return k.ipv4Servers
}

// Unverified returns the unverified places.
func (k *Kernel) Unverified() Unverified { return k.unverified }

// Postpone leaves touched objects for the next full comparison.
func (k *Kernel) Postpone(touched *want.Touched) {
	k.unverified.Add(touched)
	k.failed.Add(touched)
}

// BeginPlan prepares the known state for a plan. The first plan after a full read starts without failures. Later plans
// do not recheck the base, on which all Services depend, so its failures stay.
func (k *Kernel) BeginPlan(w *diff.Target) {
	if k.failures == nil {
		k.failures = diff.NewFailures(w, k.have)
	} else {
		k.failures = k.failures.Next()
	}
}

// Blocks returns an error if an operation depends on a failed one (I8), or if the kernel has just refused it.
func (k *Kernel) Blocks(now time.Time, op kernel.Op) error {
	if err := k.failures.Blocks(op); err != nil {
		return err
	}
	return k.Refusals.Holds(now, op)
}

// Skipped records an operation that was not tried.
func (k *Kernel) Skipped(op kernel.Op, why error) {
	k.failures.Add(op, why)
	touch(op, k.waiting)
}

// Succeeded records operations that succeeded.
func (k *Kernel) Succeeded(ops ...kernel.Op) {
	k.have.Advance(ops...)
	for _, op := range ops {
		k.succeeded(op)
	}
}

func (k *Kernel) succeeded(op kernel.Op) {
	k.noteWrite(op.Object)
	k.Refusals.succeeded(op.Object)
	switch o := op.Object.(type) {
	case kernel.Server:
		if op.Verb == kernel.Delete {
			delete(k.ours, o.Key)
		} else {
			k.ours[o.Key] = struct{}{}
		}
	case kernel.Member:
		k.restore(o, op.Verb == kernel.Create)
	case kernel.Set:
		// The kernel decides which members survive an update of their set.
		k.inexact = k.inexact || op.Verb == kernel.Update
	}
}

// Failed records a failed operation. Unless the kernel refused the operation, it may have taken effect.
func (k *Kernel) Failed(now time.Time, op kernel.Op, err error, w *diff.Target) {
	if sysctl, ok := op.Object.(kernel.SysctlSetting); ok && sysctl.Optional && !kernel.Passing(err) {
		k.unsettable[sysctl] = err
	}
	if missing := (kernel.NoSchedulerError{}); errors.As(err, &missing) {
		k.Schedulers.missing[missing.Scheduler] = struct{}{}
	}
	if kernel.Refused(op, err) {
		k.Refusals.note(now, op, err, w)
		touch(op, k.waiting)
	} else {
		if server, ok := op.Object.(kernel.Server); ok && op.Verb == kernel.Create && !errors.Is(err, kernel.ErrExists) {
			// The virtual server may have been created anyway. In that case it is ours, even if another program removes
			// the owner record.
			k.ours[server.Key] = struct{}{}
		}
		k.unverified.addOp(op)
		k.failed.addOp(op)
		k.skipped, k.skippedLater = true, true
	}
	k.noteWrite(op.Object)
	k.failures.Add(op, err)
}

// If the next audit returns everything anyway, written stays empty. The first sync writes every object.
func (k *Kernel) noteWrite(object kernel.Object) {
	if k.auditing || !k.lost {
		k.written.note(object)
	}
	k.writes.note(object)
}

// TakeInexact reports whether the state may differ from the kernel although no operation failed, and resets this flag.
func (k *Kernel) TakeInexact() bool {
	inexact := k.inexact
	k.inexact = false
	return inexact
}

func has(keys keySet, key kernel.ServerKey) bool {
	_, ok := keys[key]
	return ok
}
