package live

import (
	"context"
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type applier interface {
	Apply(ctx context.Context, ops []kernel.Op) []error
}

// Apply tries every operation in order and returns one result per operation: an error or nil. It passes consecutive operations to a backend
// in one call, so that the backend can batch them.
//
// If Apply creates anything, it also takes over a kube-ipvs0 that another program created.
func (k *Kernel) Apply(ctx context.Context, ops []kernel.Op) []error {
	if slices.ContainsFunc(ops, func(op kernel.Op) bool { return op.Verb == kernel.Create }) {
		k.netdev.TakeOver()
	}
	errs := make([]error, 0, len(ops))
	for from := 0; from < len(ops); {
		backend := k.backend(ops[from])
		to := from + 1
		for to < len(ops) && k.backend(ops[to]) == backend {
			to++
		}
		errs = append(errs, applyTo(ctx, backend, ops[from:to])...)
		from = to
	}
	return errs
}

func (k *Kernel) backend(op kernel.Op) applier {
	switch op.Object.(type) {
	case kernel.OldRules:
		return k.old
	case kernel.Leftover:
		return k.leftovers
	}
	switch op.KindOf() {
	case kernel.KindSysctl, kernel.KindDevice, kernel.KindAddress:
		return k.netdev
	case kernel.KindSet, kernel.KindMember:
		return k.sets
	case kernel.KindRules:
		return k.rules
	case kernel.KindServer, kernel.KindDestination, kernel.KindTimeouts:
		return k.balancer
	}
	panic(fmt.Sprintf("no backend for objects of kind %d", op.KindOf()))
}
