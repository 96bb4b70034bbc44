package ipset

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Apply executes the operations on sets and members in order and returns one result per operation. A failed operation does not stop later
// operations. It is not an error to create an existing member or to delete a missing one.
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
		return fmt.Errorf("apply %s: not an ipset object", op.Object)
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

var errVerb = errors.New("verb does not apply to members")
