// Package known holds what the agent knows of the kernel: the state it has read and the changes it has written since, which virtual
// servers are ours, which operations failed or were refused, and which schedulers the kernel has.
//
// None of this is ever the only copy: a restarted agent finds everything in the kernel again (I9).
//
// May import: diff, inet, kernel, model, want. It does no I/O and has no clock: the methods that need the time take it.
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

// Kernel is the agent's knowledge of the kernel.
type Kernel struct {
	// Schedulers records which schedulers the kernel has.
	Schedulers *Schedulers
	// Refusals records which objects the kernel refuses.
	Refusals *Refusals

	// have is nil until the kernel has been read. Lookups and successful operations advance it.
	have *kernel.State
	// inexact says that have may differ from the kernel although nothing failed.
	inexact bool
	// ours are the virtual servers known to be ours, so that another program that empties the ledger does not disown them.
	ours keySet
	// contested are virtual servers of other programs for which the ledger may still have an entry of ours.
	contested  keySet
	unverified Unverified
	// skipped says that operations failed, or built on one that failed, since everything was compared.
	skipped bool
	// waiting are the objects that were refused or skipped since then.
	waiting *want.Touched
	// written, failed and skippedLater are the same since the last audit began.
	written      written
	failed       Unverified
	skippedLater bool
	writes       Writes
	// ipv4Servers counts the known virtual servers of IPv4; it is up to date as of a number of writes.
	ipv4Servers   int
	ipv4ServersAt uint64
	// lost says that the next audit must tell everything: there was none since the last full read, or its result was lost.
	lost bool
	// unsettable are optional sysctls that the kernel refused: it will refuse them again.
	unsettable map[kernel.SysctlSetting]bool
	// failures since the last full read; nil if no plan was applied since.
	failures *diff.Failures
}

// New returns a Kernel of which nothing is known.
func New() *Kernel {
	return &Kernel{
		Schedulers: newSchedulers(), Refusals: newRefusals(), ours: keySet{}, contested: keySet{}, unverified: Unverified{}, unsettable: map[kernel.SysctlSetting]bool{},
		waiting: want.NewTouched(), written: newWritten(), failed: Unverified{}, lost: true,
	}
}

// State is the kernel's state as far as it is known; nil if the kernel has never been read.
func (k *Kernel) State() *kernel.State { return k.have }

// Replace takes over a full read of the kernel. Everything is verified by it.
func (k *Kernel) Replace(fresh *kernel.State, base want.Base) {
	k.have, k.unverified, k.skipped, k.lost = fresh, Unverified{}, false, true
	k.writes.all()
	k.Compared(base)
}

// Compared follows a comparison of everything with the known state: failures before it are over.
func (k *Kernel) Compared(base want.Base) {
	fresh := k.have
	k.failures, k.waiting = nil, want.NewTouched()
	maps.DeleteFunc(k.contested, func(key kernel.ServerKey, _ struct{}) bool {
		_, exists := fresh.Servers[key]
		return !exists || !fresh.HasMember(want.LedgerEntry(base.Ledger, key))
	})
}

// LookedUp takes over a lookup of some virtual servers. Those not found do not exist.
func (k *Kernel) LookedUp(keys []kernel.ServerKey, found map[kernel.ServerKey]kernel.ObservedServer) {
	k.writes.Servers++
	for _, key := range keys {
		k.written.servers[key] = struct{}{}
		if server, exists := found[key]; exists {
			k.have.Servers[key] = server
		} else {
			delete(k.have.Servers, key)
		}
	}
}

// SetOurs replaces the set of virtual servers that are ours, after a full read. Those of unverified writes stay: they may exist.
func (k *Kernel) SetOurs(keys map[kernel.ServerKey]struct{}) {
	for key := range k.ours {
		if k.unverified.Has(key) {
			keys[key] = struct{}{}
		}
	}
	k.ours = keys
}

// Own notes that a virtual server is ours.
func (k *Kernel) Own(key kernel.ServerKey) { k.ours[key] = struct{}{} }

// Ours reports whether a virtual server is known to be ours.
func (k *Kernel) Ours(key kernel.ServerKey) bool { return has(k.ours, key) }

// Contest notes that a virtual server belongs to another program although the ledger has an entry of ours for it. It stays contested
// until a full read finds that the server or the entry is gone.
func (k *Kernel) Contest(key kernel.ServerKey) {
	k.contested[key] = struct{}{}
	delete(k.ours, key)
}

// Contested reports whether a virtual server is contested.
func (k *Kernel) Contested(key kernel.ServerKey) bool { return has(k.contested, key) }

// Unsettable reports whether the kernel refused an optional sysctl.
func (k *Kernel) Unsettable(s kernel.SysctlSetting) bool { return k.unsettable[s] }

// Writes returns the counts of changes.
func (k *Kernel) Writes() Writes { return k.writes }

// IPv4Servers is the number of known virtual servers of IPv4.
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

// Unverified is the part of the state that may not be relied on.
func (k *Kernel) Unverified() Unverified { return k.unverified }

// Postpone leaves touched objects to the next comparison of everything.
func (k *Kernel) Postpone(touched *want.Touched) {
	k.unverified.Add(touched)
	k.failed.Add(touched)
}

// BeginPlan starts to apply a plan. The first one after a full read starts without failures; later ones do not check again what all
// Services build on, so such failures stay.
func (k *Kernel) BeginPlan(w *want.State) {
	if k.failures == nil {
		k.failures = diff.NewFailures(w, k.have)
	} else {
		k.failures = k.failures.Next()
	}
}

// Blocks returns why an operation must be skipped: something it builds on has failed (I8), or the kernel has just refused it. It returns nil
// if it may be tried.
func (k *Kernel) Blocks(now time.Time, op kernel.Op) error {
	if err := k.failures.Blocks(op); err != nil {
		return err
	}
	return k.Refusals.Holds(now, op)
}

// Skipped notes an operation that was not tried.
func (k *Kernel) Skipped(op kernel.Op, why error) {
	k.failures.Add(op, why)
	touch(op, k.waiting)
}

// Succeeded notes operations that succeeded.
func (k *Kernel) Succeeded(ops ...kernel.Op) {
	k.have.Advance(ops...)
	for _, op := range ops {
		k.succeeded(op)
	}
}

func (k *Kernel) succeeded(op kernel.Op) {
	k.written.note(op.Object)
	k.writes.note(op.Object)
	k.Refusals.succeeded(op.Object)
	switch o := op.Object.(type) {
	case kernel.Server:
		if op.Verb == kernel.Delete {
			delete(k.ours, o.Key)
		} else {
			k.ours[o.Key] = struct{}{}
		}
	case kernel.Set:
		// The kernel decides which members survive an update.
		k.inexact = k.inexact || op.Verb == kernel.Update
	}
}

// Failed records an operation that failed. Unless the kernel refused it, it may have taken effect.
func (k *Kernel) Failed(now time.Time, op kernel.Op, err error, w *want.State) {
	if sysctl, ok := op.Object.(kernel.SysctlSetting); ok && sysctl.Optional {
		k.unsettable[sysctl] = true
	}
	if missing := (kernel.NoSchedulerError{}); errors.As(err, &missing) {
		k.Schedulers.missing[missing.Scheduler] = struct{}{}
	}
	if kernel.Refused(op, err) {
		k.Refusals.note(now, op, err, w)
		touch(op, k.waiting)
	} else {
		if server, ok := op.Object.(kernel.Server); ok && op.Verb == kernel.Create && !errors.Is(err, kernel.ErrExists) {
			// It may exist nevertheless, and then it is ours, as its owner record says until another program removes that.
			k.ours[server.Key] = struct{}{}
		}
		k.unverified.addOp(op)
		k.failed.addOp(op)
		k.skipped, k.skippedLater = true, true
	}
	k.written.note(op.Object)
	k.writes.note(op.Object)
	k.failures.Add(op, err)
}

// TakeInexact reports whether the state may differ from the kernel although nothing failed, once.
func (k *Kernel) TakeInexact() bool {
	inexact := k.inexact
	k.inexact = false
	return inexact
}

func has(keys keySet, key kernel.ServerKey) bool {
	_, ok := keys[key]
	return ok
}
