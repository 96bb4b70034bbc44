package agent

import (
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/journal"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const maxCauseObjects = 10

func (s *syncRun) because(reason view.Reason, applies bool) {
	if applies {
		s.report.Causes = append(s.report.Causes, view.Cause{Reason: reason, Objects: view.Some[string]{Items: []string{}}})
	}
}

func becauseOf[K any](s *syncRun, reason view.Reason, objects []K, text func(K) string) {
	if len(objects) > 0 {
		if s.report.Causes == nil {
			s.report.Causes = make([]view.Cause, 0, 2) // most syncs have one or two
		}
		s.report.Causes = append(s.report.Causes, view.Cause{Reason: reason, Objects: some(objects, maxCauseObjects, text)})
	}
}

func some[K any](list []K, limit int, text func(K) string) view.Some[string] {
	texts := make([]string, 0, min(len(list), limit))
	for _, item := range list[:min(len(list), limit)] {
		texts = append(texts, journal.Text(text(item)))
	}
	return view.Some[string]{Count: len(list), Items: texts}
}

func asItIs(text string) string { return text }

// noteCauses notes why the sync runs. moved is true if the node's addresses may have changed. retrying is true if the last
// sync failed.
func (s *syncRun) noteCauses(p *planner, changes model.Changes, moved, retrying bool) {
	settings := p.changedSettings
	p.changedSettings = nil
	if !changes.Since.IsZero() {
		s.report.Waited = max(0, s.now.Sub(changes.Since))
	}
	if s.because(view.ForStart, s.reads); !s.reads { // at the start, all objects are new
		becauseOf(s, view.ForServices, sortedKeys(changes.Services, model.ServiceID.Compare), func(id model.ServiceID) string {
			return id.String() + ifNil(changes.Services[id], " (deleted)")
		})
		becauseOf(s, view.ForNodes, sortedKeys(changes.Nodes, strings.Compare), func(name string) string { return name + ifNil(changes.Nodes[name], " (deleted)") })
		s.because(view.ForAPIServer, changes.APIServer != nil || changes.Version != (model.Version{}))
		s.because(view.ForAddresses, moved)
	}
	becauseOf(s, view.ForInvalid, sortedKeys(changes.Problems, model.ObjectRef.Compare), model.ObjectRef.String)
	becauseOf(s, view.ForSettings, settings, asItIs)
	retry := p.known.Refusals.Next()
	s.because(view.ForRetry, s.full() && retrying)
	s.because(view.ForRefused, !retry.IsZero() && !s.now.Before(retry))
	s.because(view.ForRules, len(s.report.Results) > 0)
	s.because(view.ForRemainder, len(s.touched.Servers) > 0 || p.cluster.Behind())
	s.because(view.ForDraining, p.draining.Due(s.now))
	s.because(view.ForSlowStart, p.ramps.Due(s.now))
}

func sortedKeys[K comparable, V any](m map[K]V, compare func(a, b K) int) []K {
	if len(m) == 0 {
		return nil
	}
	keys := make([]K, 0, len(m)) // most syncs have one key, and an iterator would cost more
	for key := range m {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, compare)
	return keys
}

func ifNil[T any](value *T, text string) string {
	if value == nil {
		return text
	}
	return ""
}
