package lastknown

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type source struct {
	changes model.Changes
	synced  bool
}

func (s *source) Changed() <-chan struct{} { return nil }
func (s *source) Synced() bool             { return s.synced }
func (s *source) Take() model.Changes      { return s.changes }

// The recorder never writes an incomplete or outdated state.
func TestRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var times []time.Duration
		var fresh atomic.Bool
		fresh.Store(true)
		start := time.Now()
		from := &source{synced: true}
		r := &Recorder{
			Source: from, Path: filepath.Join(t.TempDir(), "snapshot"), ID: func() (Identity, error) { return self, nil }, Fresh: fresh.Load,
			Wrote: func(at time.Time, err error) {
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				times = append(times, at.Sub(start))
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		go r.Run(ctx)
		put := func(name string) {
			id := model.ServiceID{Namespace: "default", Name: name}
			from.changes.Services = map[model.ServiceID]*model.Service{id: {ID: id}}
			r.Take()
		}
		check := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(times) != want {
				t.Errorf("%s: %d writes at %v, want %d", what, len(times), times, want)
			}
		}
		put("a")
		time.Sleep(10*time.Minute + time.Second)
		check("one change", 1)
		time.Sleep(time.Hour)
		check("an hour without a change", 2)
		for range 60 {
			put("b")
			time.Sleep(10 * time.Second)
		}
		check("changes for ten minutes", 4)
		fresh.Store(false)
		put("c")
		time.Sleep(2 * time.Hour)
		check("an outdated state", 4)
		fresh.Store(true)
		cancel()
		check("the end", 5)
		if s, err := Read(r.Path, self, time.Now(), time.Hour); err != nil || len(s.Services) != 3 {
			t.Errorf("read %+v, %v", s, err)
		}
	})
}
