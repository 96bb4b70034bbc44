package ipset

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Apply makes the operations on sets and members in order and answers each of them. A failed operation does not stop those
// behind it.
//
// Creating a member that exists and deleting one that does not are successes: the state is the one that was asked for.
func (b *Backend) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for from := 0; from < len(ops); {
		to := segment(ops, from)
		if to > from {
			b.applyMembers(ctx, ops[from:to], errs[from:to])
			from = to
			continue
		}
		errs[from] = b.applyOne(ctx, ops[from])
		from++
	}
	return errs
}

func (b *Backend) applyOne(ctx context.Context, op kernel.Op) error {
	set, ok := op.Object.(kernel.Set)
	if !ok {
		return fmt.Errorf("apply %s: not an object of ipset", op.Object)
	}
	err := ctx.Err()
	if err == nil {
		err = b.applySet(ctx, op.Verb, set)
	}
	if err != nil {
		return fmt.Errorf("%s set %s: %w", verbs[op.Verb], set, refusal(err))
	}
	return nil
}

var verbs = map[kernel.Verb]string{kernel.Create: "create", kernel.Update: "update", kernel.Delete: "delete"}

var errVerb = errors.New("verb is not for members")
