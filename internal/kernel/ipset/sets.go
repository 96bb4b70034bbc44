package ipset

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const maxName = 31

func (b *Backend) applySet(ctx context.Context, verb kernel.Verb, s kernel.Set) error {
	switch verb {
	case kernel.Create:
		return create(s)
	case kernel.Delete:
		return destroy(s.Name)
	case kernel.Update:
		return b.replace(ctx, s)
	}
	return fmt.Errorf("verb %d does not apply to sets", verb)
}

// If possible, replace fills a second set and swaps the two atomically, so that rules can keep referring to the set. The kernel swaps only
// sets of the same family and element kind. A set of another type must be recreated, which is impossible while a rule refers to the set.
func (b *Backend) replace(ctx context.Context, want kernel.Set) error {
	have, err := b.header(ctx, want.Name)
	if err != nil || have.Set == want {
		return err
	}
	if have.baseType() != want.Type || have.Family != want.Family {
		return remake(have, want)
	}
	temporary := want
	temporary.Name = temporaryName(want.Name)
	if err := destroy(temporary.Name); err != nil { // left by a process that was killed here
		return fmt.Errorf("destroy set %s: %w", temporary.Name, err)
	}
	if err := create(temporary); err != nil {
		return fmt.Errorf("create set %s: %w", temporary.Name, err)
	}
	err = b.fillAndSwap(ctx, have, temporary)
	return errors.Join(err, destroy(temporary.Name))
}

func remake(have header, want kernel.Set) error {
	if err := destroy(want.Name); err != nil {
		return fmt.Errorf("the existing set %s cannot be swapped or destroyed: %w", have.Set, err)
	}
	return create(want)
}

// fillAndSwap keeps the members if the new set has room for all of them. A set with extensions loses its members, because the agent cannot
// read them.
func (b *Backend) fillAndSwap(ctx context.Context, have header, temporary kernel.Set) error {
	read, err := b.Follow().follow(ctx, have, followed{})
	if err != nil {
		return fmt.Errorf("read members: %w", err)
	}
	if len(read.members) <= int(temporary.MaxElem) {
		if err := b.fill(ctx, temporary.Name, read.members); err != nil {
			return err
		}
	}
	if err := swap(have.Name, temporary.Name); err != nil {
		return fmt.Errorf("swap with set %s: %w", temporary.Name, err)
	}
	return nil
}

func (b *Backend) fill(ctx context.Context, name string, members map[kernel.Element]struct{}) error {
	ops := make([]kernel.Op, 0, len(members))
	for e := range members {
		ops = append(ops, kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: name, Element: e}})
	}
	for _, err := range b.Apply(ctx, ops) {
		if err != nil {
			return err // one error is enough
		}
	}
	return nil
}

// temporaryName keeps the prefix, so that the agent recognizes a leftover set as its own.
func temporaryName(name string) string { return name[:min(len(name), maxName-1)] + "~" }
