package agent

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// noteStuck remembers which programs do not work. A report of some operations says nothing about the other programs; only a full sync that has
// read a family's rules, and waits for no write of them, says that its programs work.
func (s *syncRun) noteStuck() {
	r := s.report
	waits := map[inet.Family]bool{}
	for _, result := range r.Results {
		if rules, ok := result.Op.Object.(kernel.Ruleset); ok && errors.Is(result.Err, errUnfinished) {
			waits[rules.Family] = true
		}
	}
	for _, f := range inet.Families {
		if r.rulesRead && r.rulesErr[f] == nil && !waits[f] {
			delete(s.stuck, kernel.Programs(f))
		}
	}
	for _, result := range r.Results {
		if result.Err != nil && !result.Skipped {
			s.seeStuck(result.Err)
		}
	}
	for _, err := range r.rulesErr {
		s.seeStuck(err)
	}
	r.Stuck = slices.SortedFunc(maps.Values(s.stuck), func(a, b kernel.StuckError) int { return strings.Compare(a.Part, b.Part) })
}

func (a *Agent) seeStuck(err error) {
	if stuck := (kernel.StuckError{}); errors.As(err, &stuck) {
		a.stuck[stuck.Part] = stuck
	}
}
