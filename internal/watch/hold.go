package watch

import (
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// An API server that has lost its storage, or has been restored from an old backup, lists fewer objects than exist. The agent cannot
// distinguish such a list from a list after a mass deletion that it missed. Therefore a list that lacks most objects removes nothing at
// first (I15). Deletions reported by a watch take effect immediately.

const (
	// holdFor is how long the Store holds objects that are missing from a list. If a second list also lacks them, they are
	// deleted sooner.
	holdFor = 30 * time.Second
	// fewMissing is the largest number of missing Services or EndpointSlices that is always plausible. It does not apply to Nodes,
	// because a cluster may have only a few.
	fewMissing = 4
)

// held are the objects that the Store keeps although they are missing from the API server's last list of their kind.
type held struct {
	// objects maps them to the end of their hold.
	objects map[model.ObjectRef]time.Time
	// endpoints maps pod addresses to the held EndpointSlices that contain them.
	endpoints map[netip.Addr][]model.ObjectRef
}

func (h *held) drop(key model.ObjectRef) {
	delete(h.objects, key)
	if len(h.objects) == 0 {
		h.endpoints = nil
	}
}

func (h *held) services() int {
	n := 0
	for key := range h.objects {
		if key.Kind == model.KindService {
			n++
		}
	}
	return n
}

// relist applies a complete list of a kind from the API server. It returns the number of missing objects that are held.
func (s *Store) relist(kind model.Kind, records []*Record) (holding int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wasSynced := s.synced()
	missing := s.putList(kind, records)
	hold := s.implausible(kind, missing, len(records))
	for _, key := range missing {
		if _, held := s.held.objects[key]; hold && !held {
			s.hold(key)
			holding++
			continue
		}
		s.put(newRecord(key.Kind, key.Namespace, key.Name))
	}
	if holding > 0 {
		time.AfterFunc(holdFor, s.release)
		s.yieldToAll()
	}
	if !wasSynced && s.synced() {
		s.wake()
	}
	s.signal()
	return holding
}

// implausible reports whether a list lacks most of the known objects although most of the missing objects still have a
// counterpart. The counterparts of a Service are its EndpointSlices, and vice versa. The counterparts of a Node are its
// endpoints.
func (s *Store) implausible(kind model.Kind, missing []model.ObjectRef, listed int) bool {
	if kind != model.KindNode && len(missing) <= fewMissing || len(missing) <= listed {
		return false
	}
	hosts := s.hosts(kind)
	evident := 0
	for _, key := range missing {
		if _, host := hosts[key.Name]; host || s.hasCounterpart(key) {
			evident++
		}
	}
	return 2*evident > len(missing)
}

// hosts returns the names of the nodes that have endpoints. It returns none if kind is not Node.
func (s *Store) hosts(kind model.Kind) map[string]struct{} {
	names := map[string]struct{}{}
	if kind != model.KindNode {
		return names
	}
	for _, e := range s.services {
		for _, slice := range e.slices {
			for i := range slice.Endpoints {
				names[slice.Endpoints[i].Node] = struct{}{}
			}
		}
	}
	return names
}

// hasCounterpart reports whether a Service still has an EndpointSlice, or whether an EndpointSlice still has its Service.
func (s *Store) hasCounterpart(key model.ObjectRef) bool {
	if key.Kind == model.KindService {
		e := s.services[model.ServiceID{Namespace: key.Namespace, Name: key.Name}]
		return e != nil && len(e.slices) > 0
	}
	e := s.services[model.ServiceID{Namespace: key.Namespace, Name: s.owners[key]}]
	return e != nil && e.service != nil
}

// If a held Service conflicts with another Service, the held Service loses its claim.
func (s *Store) hold(key model.ObjectRef) {
	if key.Kind == model.KindService {
		id := model.ServiceID{Namespace: key.Namespace, Name: key.Name}
		if e := s.services[id]; e != nil && e.service != nil {
			svc := *e.service
			svc.Held = true
			s.putService(id, &svc)
		}
	}
	s.held.objects[key] = time.Now().Add(holdFor)
	if slice := s.slice(key); slice != nil {
		for i := range slice.Endpoints {
			s.holdEndpoint(key, &slice.Endpoints[i])
		}
	}
}

func (s *Store) holdEndpoint(slice model.ObjectRef, e *model.Endpoint) {
	if e.Pod == "" {
		return
	}
	if s.held.endpoints == nil {
		s.held.endpoints = map[netip.Addr][]model.ObjectRef{}
	}
	s.held.endpoints[e.Addr] = append(s.held.endpoints[e.Addr], slice)
}

func (s *Store) slice(key model.ObjectRef) *model.EndpointSlice {
	e := s.services[model.ServiceID{Namespace: key.Namespace, Name: s.owners[key]}]
	if key.Kind != model.KindEndpointSlice || e == nil {
		return nil
	}
	i, found := e.findSlice(key.Name)
	if !found {
		return nil
	}
	return e.slices[i]
}

// yieldToAll removes held endpoints whose addresses now belong to other pods.
func (s *Store) yieldToAll() {
	if len(s.held.endpoints) == 0 {
		return
	}
	for id, e := range s.services {
		for _, slice := range slices.Clone(e.slices) {
			if _, isHeld := s.held.objects[model.ObjectRef{Kind: model.KindEndpointSlice, Namespace: id.Namespace, Name: slice.Name}]; !isHeld {
				s.yieldTo(slice)
			}
		}
	}
}

// yieldTo removes held endpoints that have the address of another pod in the slice. A held pod no longer exists if its address
// has been reused. Pods on the host network share the node's address.
func (s *Store) yieldTo(slice *model.EndpointSlice) {
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		holders := s.held.endpoints[e.Addr]
		if e.Pod == "" || len(holders) == 0 || s.isNode(e.Addr) {
			continue
		}
		delete(s.held.endpoints, e.Addr)
		for _, key := range holders {
			if _, isHeld := s.held.objects[key]; isHeld {
				s.giveUp(key, e)
			}
		}
	}
}

// giveUp removes endpoints from a held slice if another pod has their address.
func (s *Store) giveUp(key model.ObjectRef, to *model.Endpoint) {
	slice := s.slice(key)
	if slice == nil {
		return
	}
	less := *slice
	less.Endpoints = nil
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		switch {
		case e.Addr != to.Addr || e.Pod == "":
			less.Endpoints = append(less.Endpoints, *e)
		case e.Pod == to.Pod: // the same pod serves two Services
			less.Endpoints = append(less.Endpoints, *e)
			s.holdEndpoint(key, e)
		}
	}
	id := model.ServiceID{Namespace: key.Namespace, Name: s.owners[key]}
	if e := s.services[id]; e.setSlice(&less) {
		s.markDirty(id, e)
	}
}

func (s *Store) isNode(addr netip.Addr) bool {
	for _, node := range s.nodes {
		if slices.Contains(node.Addresses, addr) {
			return true
		}
	}
	return false
}

// release deletes the objects whose hold has ended.
func (s *Store) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for key, until := range s.held.objects {
		if !now.Before(until) {
			s.put(newRecord(key.Kind, key.Namespace, key.Name))
		}
	}
	s.signal()
}

func logHolding(log *zap.Logger, kind model.Kind, holding int) {
	if holding > 0 {
		log.Warn("the API server's list lacks most objects that are in use; keeping them for a short time in case the list is wrong",
			zap.String("kind", string(kind)), zap.Int("kept", holding), zap.Duration("for", holdFor))
	}
}
