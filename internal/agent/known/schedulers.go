package known

import (
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Schedulers records which schedulers the kernel has.
type Schedulers struct {
	// missing contains the schedulers that the kernel has refused since the last call to Take.
	missing map[string]struct{}
	probed  map[string]struct{}
}

func newSchedulers() *Schedulers {
	return &Schedulers{missing: map[string]struct{}{}, probed: map[string]struct{}{}}
}

// ToProbe returns a sorted list of the schedulers to probe. It contains the unknown schedulers of the changed Services,
// and others.
func (s *Schedulers) ToProbe(changed map[model.ServiceID]*model.Service, others []string) []string {
	names := map[string]struct{}{}
	for _, svc := range changed {
		if svc == nil || svc.Balancing.Scheduler == "" {
			continue
		}
		if _, probed := s.probed[svc.Balancing.Scheduler]; !probed {
			names[svc.Balancing.Scheduler] = struct{}{}
		}
	}
	for _, name := range others {
		names[name] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// Take combines the result of a probe with the schedulers that operations found missing. The result maps each
// scheduler to whether the kernel has it.
func (s *Schedulers) Take(answered map[string]bool) map[string]bool {
	available := map[string]bool{}
	for name := range s.missing {
		available[name] = false
	}
	clear(s.missing)
	maps.Copy(available, answered)
	for name := range available {
		s.probed[name] = struct{}{}
	}
	return available
}
