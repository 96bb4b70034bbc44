package kerneltest

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// After a successful operation, kernel.State.Advance updates the known state to match the kernel.
func TestAdvance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := New(Chains...)
		believed := f.State()
		for _, batch := range rapid.Custom(randomScript).Draw(t, "script") {
			held, was := maps.Clone(believed.Servers), map[kernel.ServerKey]kernel.ObservedServer{}
			for key, server := range held {
				server.Destinations = slices.Clone(server.Destinations)
				was[key] = server
			}
			var succeeded []kernel.Op
			for _, op := range batch {
				if planned(op) && apply(f, op)[0] == nil {
					succeeded = append(succeeded, op)
				}
			}
			believed.Advance(succeeded...)
			if !reflect.DeepEqual(held, was) {
				t.Fatalf("a destination list that a reader still uses was modified after\n%s", batch)
			}
			if diff := Diff(f.State(), believed); diff != "" {
				t.Fatalf("after\n%s(-kernel +believed):\n%s", batch, diff)
			}
		}
	})
}

// A view shares its parts with the fake, which replaces them instead of modifying them.
func TestView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := New(Chains...)
		for _, batch := range rapid.Custom(randomScript).Draw(t, "script") {
			held, was := f.View(), MustParseDump(f.Dump()).State()
			apply(f, batch...)
			if diff := Diff(was, held); diff != "" {
				t.Fatalf("an earlier view was modified by\n%s%s", batch, diff)
			}
			if diff := Diff(MustParseDump(f.Dump()).State(), f.View()); diff != "" {
				t.Fatalf("the view is not current after\n%s(-kernel +view):\n%s", batch, diff)
			}
		}
	})
}

func planned(op kernel.Op) bool {
	switch o := op.Object.(type) {
	case kernel.Set:
		// A replaced set keeps only members that fit, so the agent reads the kernel again.
		return op.Verb != kernel.Update
	case kernel.Ruleset:
		return len(o.Chains) == len(Chains) // true if the ruleset contains all our chains
	}
	return true
}
