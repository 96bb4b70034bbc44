package agent

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// noteStuck records the programs that do not work. A full sync shows that a family's programs work again if it has read
// the family's rules and no write to these rules is pending.
func (r *Report) noteStuck(known map[string]kernel.StuckError) {
	waits := map[inet.Family]bool{}
	for _, result := range r.Results {
		if rules, ok := result.Op.Object.(kernel.Ruleset); ok && errors.Is(result.Err, errUnfinished) {
			waits[rules.Family] = true
		}
	}
	for _, f := range inet.Families {
		if r.rulesRead && r.rulesErr[f] == nil && !waits[f] {
			delete(known, kernel.Programs(f))
		}
	}
	for _, result := range r.Results {
		if result.Err != nil && !result.Skipped {
			seeStuck(known, result.Err)
		}
	}
	for _, err := range r.rulesErr {
		seeStuck(known, err)
	}
	r.Stuck = slices.SortedFunc(maps.Values(known), func(a, b kernel.StuckError) int { return strings.Compare(a.Part, b.Part) })
}

func seeStuck(known map[string]kernel.StuckError, err error) {
	if stuck := (kernel.StuckError{}); errors.As(err, &stuck) {
		known[stuck.Part] = stuck
	}
}
