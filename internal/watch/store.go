package watch

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Store holds what the objects of the cluster say, and what of it has changed since somebody last asked. It does no I/O and
// may be used by many goroutines; what it gives out is immutable.
type Store struct {
	converter
	changed chan struct{}

	mu       sync.Mutex
	services map[model.ServiceID]*entry
	// owners maps each EndpointSlice in the model to the name of its Service, of the same namespace.
	owners   map[objectKey]string
	nodes    map[string]*model.Node
	problems map[objectKey][]model.Problem
	listed   map[Kind]bool

	// What changed since the last Take.
	counts        Counts
	triggers      []model.Trigger
	dirtyServices map[model.ServiceID]struct{}
	dirtyNodes    map[string]struct{}
	dirtyProblems map[objectKey]struct{}
}

// entry is one Service name: the Service if it exists, and the slices that name it, whichever came first.
type entry struct {
	service *model.Service // without Slices; nil while there is none
	slices  []*model.EndpointSlice
	// lent says that a reader holds the list, so that it must be copied before it changes.
	lent bool
	// reported says that a reader knows this Service, so that it must hear of its end.
	reported bool
}

// NewStore returns an empty Store.
func NewStore() *Store {
	return &Store{
		converter:     converter{names: newInterner()},
		changed:       make(chan struct{}, 1),
		services:      make(map[model.ServiceID]*entry),
		owners:        make(map[objectKey]string),
		nodes:         make(map[string]*model.Node),
		problems:      make(map[objectKey][]model.Problem),
		listed:        make(map[Kind]bool),
		dirtyServices: make(map[model.ServiceID]struct{}),
		dirtyNodes:    make(map[string]struct{}),
		dirtyProblems: make(map[objectKey]struct{}),
	}
}

// Changed receives when Take has something new to say, or when Synced has become true.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Synced says whether every kind has been listed once. Until then the model is incomplete: what is missing from it may exist.
func (s *Store) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced()
}

func (s *Store) synced() bool { return len(s.listed) == len(listedKinds) }

// Counts are the changes of Services and EndpointSlices that were heard: all, and those that nobody has taken yet.
type Counts struct{ Services, ServicesPending, Endpoints, EndpointsPending int }

// Counts returns the counts.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Take returns everything that has changed since the last Take. What changed and changed back may be among it.
func (s *Store) Take() model.Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changes model.Changes
	for id := range s.dirtyServices {
		if changes.Services == nil {
			changes.Services = make(map[model.ServiceID]*model.Service, len(s.dirtyServices))
		}
		changes.Services[id] = s.lend(id)
	}
	for key := range s.dirtyProblems {
		if changes.Problems == nil {
			changes.Problems = make(map[string][]model.Problem, len(s.dirtyProblems))
		}
		changes.Problems[key.String()] = slices.Clone(s.problems[key])
	}
	for name := range s.dirtyNodes {
		if changes.Nodes == nil {
			changes.Nodes = make(map[string]*model.Node, len(s.dirtyNodes))
		}
		changes.Nodes[name] = s.nodes[name]
	}
	changes.Triggers = s.triggers
	s.triggers = nil
	s.counts.ServicesPending, s.counts.EndpointsPending = 0, 0
	clear(s.dirtyServices)
	clear(s.dirtyProblems)
	clear(s.dirtyNodes)
	return changes
}

// lend makes the value of a Service that a reader gets; nil if it is gone.
func (s *Store) lend(id model.ServiceID) *model.Service {
	e := s.services[id]
	if e.service == nil {
		e.reported = false
		s.forget(id, e)
		return nil
	}
	svc := *e.service
	svc.Slices = e.slices
	e.lent, e.reported = true, true
	return &svc
}

// Put adds or changes one object: a *v1.Service, *v1.Node or *discoveryv1.EndpointSlice.
func (s *Store) Put(obj runtime.Object) error {
	r, err := s.convert(obj, "")
	if err != nil {
		return err
	}
	s.apply(r)
	return nil
}

// Delete removes one object. Deleting what is not there is no error.
func (s *Store) Delete(kind Kind, namespace, name string) {
	s.apply(newRecord(kind, namespace, name))
}

// Replace says that these are all the objects of a kind: others are gone. After one Replace of each kind the Store is synced.
func (s *Store) Replace(kind Kind, objs []runtime.Object) error {
	records := make([]*record, 0, len(objs))
	for _, obj := range objs {
		r, err := s.convert(obj, "")
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	s.replace(map[Kind][]*record{kind: records})
	return nil
}

func (s *Store) apply(r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(r)
	s.signal()
}

// replace gives all objects of some kinds at once, so that no reader sees half of them.
//
// An empty list is taken at its word: an API server whose store was lost or restored says in the same way what is true now,
// and holding on to what it no longer knows would need a second opinion that a node does not have. Whoever wants a
// guard (F14: most Services gone in one step) has to put it in front of the writer, where it also covers deletions one by one.
func (s *Store) replace(lists map[Kind][]*record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wasSynced := s.synced()
	for kind, records := range lists {
		given := make(map[objectKey]struct{}, len(records))
		for _, r := range records {
			given[r.key()] = struct{}{}
			s.put(r)
		}
		for _, key := range s.known(kind) {
			if _, ok := given[key]; !ok {
				s.put(newRecord(key.kind, key.namespace, key.name))
			}
		}
		if slices.Contains(listedKinds[:], kind) {
			s.listed[kind] = true
		}
	}
	if !wasSynced && s.synced() {
		s.wake()
	}
	s.signal()
}

// known lists the objects of a kind that have left a trace here.
func (s *Store) known(kind Kind) []objectKey {
	var keys []objectKey
	for key := range s.problems {
		if key.kind == kind {
			keys = append(keys, key)
		}
	}
	switch kind {
	case KindService:
		for id, e := range s.services {
			if e.service != nil {
				keys = append(keys, objectKey{kind, id.Namespace, id.Name})
			}
		}
	case KindEndpointSlice:
		for key := range s.owners {
			keys = append(keys, key)
		}
	case KindNode:
		for name := range s.nodes {
			keys = append(keys, objectKey{kind: kind, name: name})
		}
	}
	return keys
}

// put makes the model say what the record says.
func (s *Store) put(r *record) {
	switch r.kind {
	case KindService:
		s.counts.Services++
		s.counts.ServicesPending++
		s.putService(model.ServiceID{Namespace: r.Namespace, Name: r.Name}, r.service)
	case KindEndpointSlice:
		s.counts.Endpoints++
		s.counts.EndpointsPending++
		s.putSlice(r)
	case KindNode:
		s.putNode(r.Name, r.node)
	}
	s.putProblems(r.key(), r.problems)
}

func (s *Store) putService(id model.ServiceID, svc *model.Service) {
	e := s.services[id]
	if e == nil {
		if svc == nil {
			return
		}
		e = &entry{}
		s.services[svc.ID] = e
	}
	if equalService(e.service, svc) {
		return
	}
	e.service = svc
	s.touch(id, e)
}

// putSlice gives a slice to the Service that it names now, and takes it from the one that it named before.
func (s *Store) putSlice(r *record) {
	key := r.key()
	if before, ok := s.owners[key]; ok && (r.slice == nil || before != r.owner.Name) {
		id := model.ServiceID{Namespace: r.Namespace, Name: before}
		delete(s.owners, key)
		s.services[id].removeSlice(r.Name)
		s.touch(id, s.services[id])
	}
	if r.slice == nil {
		return
	}
	e := s.services[r.owner]
	if e == nil {
		e = &entry{}
		s.services[r.owner] = e
	}
	s.owners[key] = r.owner.Name
	if e.setSlice(r.slice) {
		s.touch(r.owner, e)
		s.noteTrigger(r)
	}
}

// noteTrigger keeps the time of a change for the reader. What was changed before the first list was complete says nothing about
// how long a change takes.
func (s *Store) noteTrigger(r *record) {
	if !r.trigger.IsZero() && s.synced() {
		s.triggers = append(s.triggers, model.Trigger{Family: r.slice.Family, At: r.trigger, Heard: time.Now()})
	}
}

func (s *Store) putNode(name string, node *model.Node) {
	if equalNode(s.nodes[name], node) {
		return
	}
	s.dirtyNodes[name] = struct{}{}
	if node == nil {
		delete(s.nodes, name)
		return
	}
	s.nodes[name] = node
}

func (s *Store) putProblems(key objectKey, problems []model.Problem) {
	if slices.Equal(s.problems[key], problems) {
		return
	}
	s.dirtyProblems[key] = struct{}{}
	if len(problems) == 0 {
		delete(s.problems, key)
		return
	}
	s.problems[key] = problems
}

// touch notes that a Service may differ from what the reader knows.
func (s *Store) touch(id model.ServiceID, e *entry) {
	if e.service == nil && !e.reported {
		delete(s.dirtyServices, id)
		s.forget(id, e)
		return
	}
	s.dirtyServices[id] = struct{}{}
}

// forget drops an entry that nothing refers to.
func (s *Store) forget(id model.ServiceID, e *entry) {
	if e.service == nil && len(e.slices) == 0 {
		delete(s.services, id)
	}
}

func (s *Store) signal() {
	if len(s.dirtyServices) > 0 || len(s.dirtyNodes) > 0 || len(s.dirtyProblems) > 0 {
		s.wake()
	}
}

func (s *Store) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// setSlice adds or changes a slice, and says whether that made a difference.
func (e *entry) setSlice(slice *model.EndpointSlice) bool {
	i, found := e.findSlice(slice.Name)
	switch {
	case found && equalSlice(e.slices[i], slice):
		return false
	case found:
		e.own()
		e.slices[i] = slice
	default:
		e.own()
		e.slices = slices.Insert(e.slices, i, slice)
	}
	return true
}

func (e *entry) removeSlice(name string) {
	if i, found := e.findSlice(name); found {
		e.own()
		e.slices = slices.Delete(e.slices, i, i+1)
	}
	if len(e.slices) == 0 {
		e.slices = nil // as for a Service that never had any
	}
}

func (e *entry) findSlice(name string) (int, bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *model.EndpointSlice, name string) int {
		return cmp.Compare(s.Name, name)
	})
}

// own makes the list safe to change. The slices in it stay shared.
func (e *entry) own() {
	if e.lent {
		e.slices, e.lent = slices.Clone(e.slices), false
	}
}
