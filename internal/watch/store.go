package watch

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Store contains the model of the cluster's objects and tracks changes since the last Take. It performs no I/O and is safe for
// concurrent use. The values that it returns are immutable.
type Store struct {
	converter
	changed chan struct{}

	mu       sync.Mutex
	services map[model.ServiceID]*entry
	// owners maps each EndpointSlice in the model to the name of its Service, which is in the same namespace.
	owners   map[model.ObjectRef]string
	nodes    map[string]*model.Node
	problems map[model.ObjectRef][]model.Problem
	listed   map[model.Kind]bool
	held     held

	// apiServer contains the addresses of the API server, unless Take has already returned them.
	apiServer []netip.AddrPort
	// version is the API server's version. toldVersion is the version that Take returned last.
	version, toldVersion model.Version
	// The fields below describe the changes since the last Take; since is the time of the first change.
	since         time.Time
	counts        Counts
	triggers      []model.Trigger
	dirtyServices map[model.ServiceID]struct{}
	dirtyNodes    map[string]struct{}
	dirtyProblems map[model.ObjectRef]struct{}
}

// entry is a Service and its slices. The slices may arrive before the Service.
type entry struct {
	service *model.Service // without Slices; nil if it does not exist
	slices  []*model.EndpointSlice
	// shared is true while the reader uses the list of slices. A shared list is copied before it changes.
	shared bool
	// reported is true once the reader has received this Service. Its deletion must then be reported.
	reported bool
}

// NewStore returns an empty Store for one proxy.
func NewStore(proxy Proxy) *Store {
	return &Store{
		converter:     newConverter(proxy),
		changed:       make(chan struct{}, 1),
		services:      make(map[model.ServiceID]*entry),
		owners:        make(map[model.ObjectRef]string),
		nodes:         make(map[string]*model.Node),
		problems:      make(map[model.ObjectRef][]model.Problem),
		listed:        make(map[model.Kind]bool),
		held:          held{objects: map[model.ObjectRef]time.Time{}},
		dirtyServices: make(map[model.ServiceID]struct{}),
		dirtyNodes:    make(map[string]struct{}),
		dirtyProblems: make(map[model.ObjectRef]struct{}),
	}
}

// Changed returns a channel that receives a value when Take has new changes, and when Synced becomes true.
func (s *Store) Changed() <-chan struct{} { return s.changed }

// Synced reports whether every kind has been listed at least once. Until then, the model is incomplete: an object that is not
// in the model may exist.
func (s *Store) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced()
}

func (s *Store) synced() bool { return len(s.listed) == len(listedKinds) }

// Counts counts the updates received for Services and EndpointSlices, in total and since the last Take (pending).
type Counts struct{ Services, ServicesPending, Endpoints, EndpointsPending int }

// Counts returns the current counts.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Take returns everything that changed since the last Take. The result may include objects that changed and changed back.
func (s *Store) Take() model.Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changes model.Changes
	for id := range s.dirtyServices {
		if changes.Services == nil {
			changes.Services = make(map[model.ServiceID]*model.Service, len(s.dirtyServices))
		}
		changes.Services[id] = s.share(id)
	}
	for key := range s.dirtyProblems {
		if changes.Problems == nil {
			changes.Problems = make(map[model.ObjectRef][]model.Problem, len(s.dirtyProblems))
		}
		changes.Problems[key] = slices.Clone(s.problems[key])
	}
	for name := range s.dirtyNodes {
		if changes.Nodes == nil {
			changes.Nodes = make(map[string]*model.Node, len(s.dirtyNodes))
		}
		changes.Nodes[name] = s.nodes[name]
	}
	changes.APIServer, s.apiServer = s.apiServer, nil
	if s.version != s.toldVersion {
		changes.Version, s.toldVersion = s.version, s.version
	}
	changes.Triggers, changes.Held = s.triggers, s.held.services()
	changes.Since = s.since
	s.triggers, s.since = nil, time.Time{}
	s.counts.ServicesPending, s.counts.EndpointsPending = 0, 0
	clear(s.dirtyServices)
	clear(s.dirtyProblems)
	clear(s.dirtyNodes)
	return changes
}

func (s *Store) share(id model.ServiceID) *model.Service {
	e := s.services[id]
	if e.service == nil {
		e.reported = false
		s.dropUnused(id, e)
		return nil
	}
	svc := *e.service
	svc.Slices = e.slices
	e.shared, e.reported = true, true
	return &svc
}

func (s *Store) apply(r *Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(r)
	s.signal()
}

// Replace applies complete lists of some kinds atomically, so that no reader sees only some of the changes. Objects that are
// not in a list are deleted.
func (s *Store) Replace(lists map[model.Kind][]*Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wasSynced := s.synced()
	for kind, records := range lists {
		for _, key := range s.putList(kind, records) {
			s.put(newRecord(key.Kind, key.Namespace, key.Name))
		}
	}
	if !wasSynced && s.synced() {
		s.wake()
	}
	s.signal()
}

// ReplaceProblems replaces the Problems of one object.
func (s *Store) ReplaceProblems(object model.ObjectRef, list []model.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putProblems(object, list)
	s.signal()
}

// putList applies a complete list of a kind and returns the known objects that are missing from it.
func (s *Store) putList(kind model.Kind, records []*Record) (missing []model.ObjectRef) {
	given := make(map[model.ObjectRef]struct{}, len(records))
	for _, r := range records {
		given[r.Key()] = struct{}{}
		s.put(r)
	}
	if slices.Contains(listedKinds[:], kind) {
		s.listed[kind] = true
	}
	return slices.DeleteFunc(s.known(kind), func(key model.ObjectRef) bool {
		_, ok := given[key]
		return ok
	})
}

// known lists the objects of a kind that are in the model or have Problems.
func (s *Store) known(kind model.Kind) []model.ObjectRef {
	keys := map[model.ObjectRef]struct{}{}
	for key := range s.problems {
		if key.Kind == kind {
			keys[key] = struct{}{}
		}
	}
	switch kind {
	case model.KindService:
		for id, e := range s.services {
			if e.service != nil {
				keys[model.ObjectRef{Kind: kind, Namespace: id.Namespace, Name: id.Name}] = struct{}{}
			}
		}
	case model.KindEndpointSlice:
		for key := range s.owners {
			keys[key] = struct{}{}
		}
	case model.KindNode:
		for name := range s.nodes {
			keys[model.ObjectRef{Kind: kind, Name: name}] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(keys))
}

func (s *Store) put(r *Record) {
	s.held.drop(r.Key())
	switch r.kind {
	case model.KindService:
		s.counts.Services++
		s.putService(model.ServiceID{Namespace: r.Namespace, Name: r.Name}, r.Service)
	case model.KindEndpointSlice:
		s.counts.Endpoints++
		s.putSlice(r)
	case model.KindNode:
		s.putNode(r.Name, r.Node)
	}
	s.putProblems(r.Key(), r.Problems)
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
	s.counts.ServicesPending++
	s.markDirty(id, e)
}

// A slice may name a different Service than before, so putSlice also removes it from the previous Service.
func (s *Store) putSlice(r *Record) {
	key := r.Key()
	if before, ok := s.owners[key]; ok && (r.Slice == nil || before != r.owner.Name) {
		id := model.ServiceID{Namespace: r.Namespace, Name: before}
		delete(s.owners, key)
		s.services[id].removeSlice(r.Name)
		s.counts.EndpointsPending++
		s.markDirty(id, s.services[id])
	}
	if r.Slice == nil {
		return
	}
	e := s.services[r.owner]
	if e == nil {
		e = &entry{}
		s.services[r.owner] = e
	}
	s.owners[key] = r.owner.Name
	if len(s.held.endpoints) > 0 {
		s.yieldTo(r.Slice)
	}
	if e.setSlice(r.Slice) {
		s.counts.EndpointsPending++
		s.markDirty(r.owner, e)
		s.addTrigger(r)
	}
}

// addTrigger ignores changes before the first complete list, because they do not show how long a change takes to reach the kernel.
func (s *Store) addTrigger(r *Record) {
	if !r.trigger.IsZero() && s.synced() {
		s.triggers = append(s.triggers, model.Trigger{Family: r.Slice.Family, At: r.trigger, Received: time.Now()})
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

func (s *Store) putProblems(key model.ObjectRef, problems []model.Problem) {
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

// markDirty records that a Service may differ from the reader's copy.
func (s *Store) markDirty(id model.ServiceID, e *entry) {
	if e.service == nil && !e.reported {
		delete(s.dirtyServices, id)
		s.dropUnused(id, e)
		return
	}
	s.dirtyServices[id] = struct{}{}
}

func (s *Store) dropUnused(id model.ServiceID, e *entry) {
	if e.service == nil && len(e.slices) == 0 {
		delete(s.services, id)
	}
}

func (s *Store) setAPIServer(addrs []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apiServer = addrs
	s.wake()
}

// setVersion sets the version, and reports whether it is new.
func (s *Store) setVersion(v model.Version) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v == s.version {
		return false
	}
	s.version = v
	s.wake()
	return true
}

func (s *Store) signal() {
	if len(s.dirtyServices) > 0 || len(s.dirtyNodes) > 0 || len(s.dirtyProblems) > 0 {
		s.wake()
	}
}

func (s *Store) wake() {
	if s.since.IsZero() {
		s.since = time.Now()
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (e *entry) setSlice(slice *model.EndpointSlice) bool {
	i, found := e.findSlice(slice.Name)
	switch {
	case found && equalSlice(e.slices[i], slice):
		return false
	case found:
		e.unshare()
		e.slices[i] = slice
	default:
		e.unshare()
		e.slices = slices.Insert(e.slices, i, slice)
	}
	return true
}

func (e *entry) removeSlice(name string) {
	if i, found := e.findSlice(name); found {
		e.unshare()
		e.slices = slices.Delete(e.slices, i, i+1)
	}
	if len(e.slices) == 0 {
		e.slices = nil // so that it equals a Service that never had slices
	}
}

func (e *entry) findSlice(name string) (int, bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *model.EndpointSlice, name string) int {
		return cmp.Compare(s.Name, name)
	})
}

// unshare copies the list if the reader uses it. The slices in it stay shared.
func (e *entry) unshare() {
	if e.shared {
		e.slices, e.shared = slices.Clone(e.slices), false
	}
}
