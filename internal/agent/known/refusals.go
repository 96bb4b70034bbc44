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

// firstRetry is the delay after the first refusal of an object. Each further refusal doubles the delay, up to
// lastRetry.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Refusals tracks the operations that the kernel has refused because of their object (kernel.Refused), such as an
// invalid address. A refusal has no effect, so the known state stays valid. The agent retries each object with
// exponential backoff, and no other object waits (I14).
type Refusals struct {
	mode     kernel.Mode
	byObject map[any]*refusal
	changed  map[model.ServiceID]struct{}
	// problems and prevailing are cached, because computing them is slow if there are many refusals.
	problems   map[model.ServiceID][]model.Problem
	prevailing *Prevailing
}

type refusal struct {
	op     kernel.Op
	err    error
	owners []model.ServiceID
	tries  int
	// The same operation must not be retried before retryAt. A different operation on the object does not wait,
	// because it may fix the problem.
	retryAt time.Time
}

func newRefusals(mode kernel.Mode) *Refusals {
	return &Refusals{mode: mode, byObject: map[any]*refusal{}, changed: map[model.ServiceID]struct{}{}}
}

type destination struct {
	server kernel.ServerKey
	addr   netip.AddrPort
}

// identityOf returns the immutable part of an object, or nil for objects that are never refused.
func identityOf(object kernel.Object) any {
	switch o := object.(type) {
	case kernel.Server:
		return o.Key
	case kernel.ServerDestination:
		return destination{o.Server, o.Addr}
	case kernel.BoundAddress:
		return o.Addr
	case kernel.Member:
		return o
	}
	return nil
}

func (r *Refusals) note(now time.Time, op kernel.Op, err error, w *diff.Target) {
	id := identityOf(op.Object)
	entry := r.byObject[id]
	if entry == nil {
		entry = &refusal{}
		r.byObject[id] = entry
	}
	entry.op, entry.err = op, err
	entry.tries++
	entry.wait(now)
	r.own(entry, w)
	r.change(entry)
}

func (e *refusal) wait(now time.Time) {
	e.retryAt = now.Add(min(firstRetry<<min(e.tries-1, 20), lastRetry))
}

// Postpone is called at the end of a sync that began at the given time. Objects that were due but could not be
// retried because of another failure must wait again.
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

// own gives the Problem to the Services that want the object now. They may not be those that wanted it at the first refusal.
func (r *Refusals) own(entry *refusal, w *diff.Target) {
	if owners := ownersOf(entry.op, w, entry.owners); !slices.Equal(owners, entry.owners) {
		r.change(entry)
		entry.owners = owners
		r.change(entry)
	}
}

func (r *Refusals) succeeded(object kernel.Object) {
	if len(r.byObject) > 0 { // rare
		r.forget(identityOf(object))
	}
}

func (r *Refusals) forget(id any) {
	if entry := r.byObject[id]; entry != nil {
		r.change(entry)
		delete(r.byObject, id)
	}
}

// Holds returns an error if an operation must not be tried yet, because the kernel has refused the same operation.
func (r *Refusals) Holds(now time.Time, op kernel.Op) error {
	if len(r.byObject) == 0 {
		return nil
	}
	entry := r.byObject[identityOf(op.Object)]
	if entry == nil || entry.op != op || !now.Before(entry.retryAt) {
		return nil
	}
	return fmt.Errorf("refused before; the agent retries with exponential backoff: %w", entry.err)
}

// TouchDue touches the refused objects that are due for a retry, and what they need.
func (r *Refusals) TouchDue(now time.Time, w *diff.Target, touched *want.Touched) {
	for _, entry := range r.byObject {
		if now.Before(entry.retryAt) {
			continue
		}
		switch o := entry.op.Object.(type) {
		case kernel.Server:
			w.TouchWithNeeds(o.Key, touched)
		case kernel.ServerDestination:
			w.TouchWithNeeds(o.Server, touched)
		default:
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

// Objects returns all objects of a partly applied plan, including the objects already written.
func Objects(plan diff.Plan) *want.Touched {
	touched := want.NewTouched()
	for op := range plan.All {
		touch(op, touched)
	}
	return touched
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

// Settle drops refusals of objects that are no longer wanted, because the plan has no operation for them. touched
// contains the objects that the plan compares; nil means all.
func (r *Refusals) Settle(plan diff.Plan, w *diff.Target, touched *want.Touched) {
	if len(r.byObject) == 0 {
		return
	}
	planned := map[any]struct{}{}
	for op := range plan.All {
		planned[identityOf(op.Object)] = struct{}{}
	}
	for id, entry := range r.byObject {
		if touched != nil && !isTouched(entry.op, touched) {
			continue
		}
		if _, exists := planned[id]; exists {
			r.own(entry, w)
		} else {
			r.forget(id)
		}
	}
}

// Next returns the time of the next retry, or zero if there is none.
func (r *Refusals) Next() time.Time {
	var next time.Time
	for _, entry := range r.byObject {
		if next.IsZero() || entry.retryAt.Before(next) {
			next = entry.retryAt
		}
	}
	return next
}

// TakeChanged returns the Services whose Problems may have changed since the previous call.
func (r *Refusals) TakeChanged() []model.ServiceID {
	ids := slices.SortedFunc(maps.Keys(r.changed), model.ServiceID.Compare)
	clear(r.changed)
	return ids
}

// Problems returns the Problems by Service. The zero ID stands for objects without a Service. The returned map is
// never modified.
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
			problems[id] = append(problems[id], entry.problem(id, r.mode))
		}
	}
	for _, list := range problems {
		slices.SortFunc(list, model.Problem.Compare)
	}
	r.problems = problems
	return problems
}

// Prevailing is the refusal that affects the most Services.
type Prevailing struct {
	Err error
	// Services and Namespaces count the Services and namespaces with a refused object.
	Services, Namespaces int
}

// Prevailing returns the most frequent refusal. If it affects most Services, the node is at fault.
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
