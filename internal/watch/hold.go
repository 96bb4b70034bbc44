package watch

import (
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// An API server that has lost its storage, or has been restored from an old copy, lists fewer objects than exist. The agent
// cannot tell that from a mass deletion that it did not see: both are an absence, and only inferred. So a list that lacks most
// objects takes nothing away at first (I15). Deletions that a watch reports act immediately.

const (
	// holdFor is how long objects are held that a list lacks. A second list that lacks them, too, ends it sooner.
	holdFor = 30 * time.Second
	// fewMissing is a number of objects that is never held.
	fewMissing = 4
)

// held are the objects that are kept although the API server's last list of their kind lacks them.
type held struct {
	objects map[model.ObjectRef]struct{}
	release *time.Timer
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

// relist applies a complete list of a kind from the API server. It returns how many objects are held that the list lacks.
func (s *Store) relist(kind model.Kind, records []*record) (holding int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wasSynced := s.synced()
	missing := s.putList(kind, records)
	hold := s.doubtful(kind, missing, len(records))
	for _, key := range missing {
		if _, again := s.held.objects[key]; hold && !again {
			s.hold(key)
			holding++
			continue
		}
		s.put(newRecord(key.Kind, key.Namespace, key.Name))
	}
	if holding > 0 {
		s.holdUntil(holdFor)
	}
	if !wasSynced && s.synced() {
		s.wake()
	}
	s.signal()
	return holding
}

// doubtful reports whether the objects that a list lacks are too many to be believed at once: most of the known ones, and most
// of them with a counterpart that still exists. A Service's counterparts are its EndpointSlices, and theirs the Service.
func (s *Store) doubtful(kind model.Kind, missing []model.ObjectRef, listed int) bool {
	if kind != model.KindService && kind != model.KindEndpointSlice || len(missing) <= fewMissing || len(missing) <= listed {
		return false
	}
	evident := 0
	for _, key := range missing {
		if s.hasCounterpart(key) {
			evident++
		}
	}
	return 2*evident > len(missing)
}

func (s *Store) hasCounterpart(key model.ObjectRef) bool {
	if key.Kind == model.KindService {
		e := s.services[model.ServiceID{Namespace: key.Namespace, Name: key.Name}]
		return e != nil && len(e.slices) > 0
	}
	e := s.services[model.ServiceID{Namespace: key.Namespace, Name: s.owners[key]}]
	return e != nil && e.service != nil
}

// hold keeps an object. A Service that is held loses its claims to others.
func (s *Store) hold(key model.ObjectRef) {
	if key.Kind == model.KindService {
		id := model.ServiceID{Namespace: key.Namespace, Name: key.Name}
		if e := s.services[id]; e != nil && e.service != nil {
			svc := *e.service
			svc.Held = true
			s.putService(id, &svc)
		}
	}
	s.held.objects[key] = struct{}{}
}

// holdUntil deletes what is held then.
func (s *Store) holdUntil(d time.Duration) {
	if s.held.release != nil {
		s.held.release.Stop()
	}
	s.held.release = time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for key := range s.held.objects {
			s.put(newRecord(key.Kind, key.Namespace, key.Name))
		}
		s.signal()
	})
}

// logHolding announces what is held.
func logHolding(log *zap.Logger, kind model.Kind, holding int) {
	if holding > 0 {
		log.Warn("the API server's list lacks most objects that are in use; keeping them for a while, in case that is a mistake",
			zap.String("kind", string(kind)), zap.Int("kept", holding), zap.Duration("for", holdFor))
	}
}
