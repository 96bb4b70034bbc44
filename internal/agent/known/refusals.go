package known

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// firstRetry is how long after a refusal the operation is tried again. Each further refusal of the same object doubles it, up to lastRetry.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Refusals are the operations that the kernel refused because of their object (kernel.Refused): what one Service asks for, and the kernel
// cannot do. A refusal had no effect, so what is known of the kernel stays valid. It is a Problem of its Services; each object is
// tried again with growing distance, and nothing else waits for it (I14).
type Refusals struct {
	byObject map[any]*refusal
	// changed are the Services whose Problems may have changed.
	changed map[model.ServiceID]struct{}
	// problems and prevailing are computed when they are asked for, and kept until a refusal comes or goes: with many refusals, that would
	// otherwise slow down every sync.
	problems   map[model.ServiceID][]model.Problem
	prevailing *Prevailing
}

type refusal struct {
	op     kernel.Op
	err    error
	owners []model.ServiceID
	tries  int
	// retryAt is when the same operation may be tried again. One that differs is tried whenever it is planned: it may be the remedy.
	retryAt time.Time
}

func newRefusals() *Refusals {
	return &Refusals{byObject: map[any]*refusal{}, changed: map[model.ServiceID]struct{}{}}
}

// destination identifies a destination.
type destination struct {
	server kernel.ServerKey
	addr   netip.AddrPort
}

// identityOf is what stays the same while an object changes; nil for objects that are never refused.
func identityOf(object kernel.Object) any {
	switch o := object.(type) {
	case kernel.Server:
		return o.Key
	case kernel.ServerDestination:
		return destination{o.Server, o.Addr}
	case kernel.Member, kernel.BoundAddress:
		return o
	}
	return nil
}

// note records a refusal.
func (r *Refusals) note(now time.Time, op kernel.Op, err error, w *want.State) {
	id := identityOf(op.Object)
	entry := r.byObject[id]
	if entry == nil {
		entry = &refusal{owners: ownersOf(op, w)}
		r.byObject[id] = entry
	}
	entry.op, entry.err = op, err
	entry.tries++
	entry.wait(now)
	r.change(entry)
}

func (e *refusal) wait(now time.Time) {
	e.retryAt = now.Add(min(firstRetry<<min(e.tries-1, 20), lastRetry))
}

// Postpone ends a sync that began at this time: refused objects that it should have tried and did not, because something else was in
// the way, wait again.
func (r *Refusals) Postpone(now time.Time) {
	for _, entry := range r.byObject {
		if !now.Before(entry.retryAt) {
			entry.wait(now)
		}
	}
}

func (r *Refusals) change(entry *refusal) {
	r.problems, r.prevailing = nil, nil
	for _, id := range entry.owners {
		r.changed[id] = struct{}{}
	}
}

// succeeded notes that the kernel took an object.
func (r *Refusals) succeeded(object kernel.Object) {
	if len(r.byObject) > 0 { // hardly ever
		r.forget(identityOf(object))
	}
}

func (r *Refusals) forget(id any) {
	if entry := r.byObject[id]; entry != nil {
		r.change(entry)
		delete(r.byObject, id)
	}
}

// Holds returns why an operation must not be tried yet: the kernel has refused the same one. It returns nil if it may be tried.
func (r *Refusals) Holds(now time.Time, op kernel.Op) error {
	if len(r.byObject) == 0 {
		return nil
	}
	entry := r.byObject[identityOf(op.Object)]
	if entry == nil || entry.op != op || !now.Before(entry.retryAt) {
		return nil
	}
	return fmt.Errorf("refused before, tried again after a pause: %w", entry.err)
}

// TouchDue adds the refused objects that are to be tried again.
func (r *Refusals) TouchDue(now time.Time, touched *want.Touched) {
	for _, entry := range r.byObject {
		if !now.Before(entry.retryAt) {
			touch(entry.op, touched)
		}
	}
}

func touch(op kernel.Op, touched *want.Touched) {
	switch o := op.Object.(type) {
	case kernel.Server:
		touched.Servers[o.Key] = struct{}{}
	case kernel.ServerDestination:
		touched.Servers[o.Server] = struct{}{}
	case kernel.Member:
		touched.Members[o] = struct{}{}
	case kernel.BoundAddress:
		touched.Addresses[o.Addr] = struct{}{}
	}
}

func isTouched(op kernel.Op, touched *want.Touched) bool {
	exists := false
	switch o := op.Object.(type) {
	case kernel.Server:
		_, exists = touched.Servers[o.Key]
	case kernel.ServerDestination:
		_, exists = touched.Servers[o.Server]
	case kernel.Member:
		_, exists = touched.Members[o]
	case kernel.BoundAddress:
		_, exists = touched.Addresses[o.Addr]
	}
	return exists
}

// Settle forgets refusals of objects about which a plan has no operation: nobody asks for them any more. touched are the objects
// that the plan compares; nil means all.
func (r *Refusals) Settle(plan diff.Plan, touched *want.Touched) {
	if len(r.byObject) == 0 {
		return
	}
	planned := map[any]struct{}{}
	for _, op := range plan.Ops() {
		planned[identityOf(op.Object)] = struct{}{}
	}
	for id, entry := range r.byObject {
		if _, exists := planned[id]; !exists && (touched == nil || isTouched(entry.op, touched)) {
			r.forget(id)
		}
	}
}

// Next is when the next refused object is tried again; zero if there is none.
func (r *Refusals) Next() time.Time {
	var next time.Time
	for _, entry := range r.byObject {
		if next.IsZero() || entry.retryAt.Before(next) {
			next = entry.retryAt
		}
	}
	return next
}

// TakeChanged returns the Services whose Problems may have changed since it was last called.
func (r *Refusals) TakeChanged() []model.ServiceID {
	ids := slices.SortedFunc(maps.Keys(r.changed), model.ServiceID.Compare)
	clear(r.changed)
	return ids
}

// Problems returns the Problems by Service. Those with the zero ID are about objects that no Service asks for, such as one that cannot be
// deleted: they are the node's. The map does not change afterwards.
func (r *Refusals) Problems() map[model.ServiceID][]model.Problem {
	if r.problems != nil {
		return r.problems
	}
	problems := map[model.ServiceID][]model.Problem{}
	for _, entry := range r.byObject {
		owners := entry.owners
		if len(owners) == 0 {
			owners = []model.ServiceID{{}}
		}
		for _, id := range owners {
			problems[id] = append(problems[id], entry.problem(id))
		}
	}
	for _, list := range problems {
		slices.SortFunc(list, model.Problem.Compare)
	}
	r.problems = problems
	return problems
}

// Prevailing is the error with which the kernel refuses objects of the most Services.
type Prevailing struct {
	Err error
	// Services and Namespaces have such an object.
	Services, Namespaces int
}

// Prevailing returns the most frequent refusal. If most Services have it, it is the node's fault and not theirs.
func (r *Refusals) Prevailing() Prevailing {
	if r.prevailing == nil {
		r.prevailing = r.countPrevailing()
	}
	return *r.prevailing
}

func (r *Refusals) countPrevailing() *Prevailing {
	services, namespaces := map[string]map[model.ServiceID]struct{}{}, map[string]map[string]struct{}{}
	var most Prevailing
	for _, entry := range r.byObject {
		reason := kernel.RefusalReason(entry.err)
		if services[reason] == nil {
			services[reason], namespaces[reason] = map[model.ServiceID]struct{}{}, map[string]struct{}{}
		}
		for _, id := range entry.owners {
			services[reason][id], namespaces[reason][id.Namespace] = struct{}{}, struct{}{}
		}
		if n := len(services[reason]); n > most.Services {
			most = Prevailing{Err: entry.err, Services: n, Namespaces: len(namespaces[reason])}
		}
	}
	return &most
}
