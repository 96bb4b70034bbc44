package lastknown

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	checkEvery = time.Minute
	// atMostEvery is the minimum time between two writes. The write at shutdown does not wait.
	atMostEvery = 5 * time.Minute
	// atLeastEvery is the maximum time between two writes. Even if nothing has changed, a write records that the state
	// is still up to date.
	atLeastEvery = time.Hour
)

// Recorder is a source that also writes the delivered state to a file.
type Recorder struct {
	agent.Source
	Path string
	// ID is called before each write, because the certificate authorities may rotate.
	ID func() (Identity, error)
	// Fresh reports whether the source receives changes and the agent serves them. If not, the state may be outdated or wrong, and is not
	// written.
	Fresh func() bool
	// Wrote is called with the result of every write.
	Wrote func(at time.Time, err error)

	mu       sync.Mutex
	services map[model.ServiceID]*model.Service
	nodes    map[string]*model.Node
	contacts []netip.AddrPort
	dirty    bool
}

// Take implements agent.Source.
func (r *Recorder) Take() model.Changes {
	changes := r.Source.Take()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.services == nil {
		r.services, r.nodes = map[model.ServiceID]*model.Service{}, map[string]*model.Node{}
	}
	update(r.services, changes.Services)
	update(r.nodes, changes.Nodes)
	if changes.APIServer != nil {
		r.contacts = changes.APIServer
	}
	r.dirty = r.dirty || len(changes.Services)+len(changes.Nodes) > 0
	return changes
}

func update[K comparable, V any](known, changed map[K]*V) {
	for key, value := range changed {
		if value == nil {
			delete(known, key)
			continue
		}
		known[key] = value
	}
}

// Run writes the file periodically, and one last time when the context ends.
func (r *Recorder) Run(ctx context.Context) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			r.write(time.Now(), true)
			return
		case now := <-ticker.C:
			if now.Sub(last) >= atMostEvery && r.write(now, now.Sub(last) < atLeastEvery) {
				last = now
			}
		}
	}
}

// write writes only a complete and current state. It reports whether it attempted a write.
func (r *Recorder) write(now time.Time, onlyChanges bool) bool {
	if !r.Synced() || !r.Fresh() {
		return false
	}
	r.mu.Lock()
	if r.services == nil || onlyChanges && !r.dirty {
		r.mu.Unlock()
		return false
	}
	s := &State{At: now, Contacts: r.contacts, Nodes: slices.SortedFunc(maps.Values(r.nodes), byName)}
	s.Services = slices.SortedFunc(maps.Values(r.services), func(a, b *model.Service) int { return a.ID.Compare(b.ID) })
	r.dirty = false
	r.mu.Unlock()
	id, err := r.ID()
	if err == nil {
		err = Write(r.Path, id, s)
	}
	if err != nil {
		r.mu.Lock()
		r.dirty = true
		r.mu.Unlock()
	}
	r.Wrote(now, err)
	return true
}

func byName(a, b *model.Node) int { return cmp.Compare(a.Name, b.Name) }
