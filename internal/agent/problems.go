package agent

import (
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// KnownProblems tracks the Problems of all reports so far.
type KnownProblems struct {
	node    model.ObjectRef
	byCheck map[Check][]model.Problem
}

// NewKnownProblems returns an empty KnownProblems for this node.
func NewKnownProblems(node string) *KnownProblems {
	return &KnownProblems{model.NodeRef(node), map[Check][]model.Problem{}}
}

// Update compares the Problems of a report with the known ones and adds the changes to the report.
func (k *KnownProblems) Update(r *Report) {
	for _, id := range slices.SortedFunc(maps.Keys(r.Problems), model.ServiceID.Compare) {
		k.compare(r, Check{Object: id.Ref()}, r.Problems[id])
	}
	k.compare(r, Check{Object: k.node}, r.NodeProblems)
	for _, object := range slices.SortedFunc(maps.Keys(r.Unreadable), model.ObjectRef.Compare) {
		k.compare(r, Check{true, object}, r.Unreadable[object])
	}
}

func (k *KnownProblems) compare(r *Report, check Check, now []model.Problem) {
	before := k.byCheck[check]
	if k.byCheck[check] = now; len(now) == 0 {
		delete(k.byCheck, check)
	}
	c := ProblemChange{Check: check, More: len(now) - len(before)}
	for _, p := range now {
		if !slices.Contains(before, p) {
			c.Added = append(c.Added, p)
		}
	}
	for _, p := range before {
		if !slices.ContainsFunc(now, func(other model.Problem) bool { return replaces(other, p) }) {
			c.Resolved = append(c.Resolved, p)
		}
	}
	if len(c.Added)+len(c.Resolved) > 0 || c.More != 0 {
		r.ProblemChanges = append(r.ProblemChanges, c)
	}
}

func replaces(p, q model.Problem) bool {
	return p.Service == q.Service && p.Object == q.Object && p.Field == q.Field
}
