package watch

import (
	"context"
	"fmt"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Manifests is the source that reads Service, EndpointSlice and Node objects from the YAML and JSON files of a directory.
//
// A file that goes takes its objects with it, all but the last one: a directory without any is what an unmounted volume looks
// like, and everything stays as it was. A file with only a comment in it says that there is no object.
type Manifests struct {
	*Store
	dir  *directory
	log  *zap.Logger
	pace pace
	// told is the version of the directory that the Store knows.
	told int
}

// pace is how fast changes of a directory are followed. Only tests change it.
type pace struct {
	// settle is the quiet after a change before the files are read: a file that is being written is half a file. settleMax
	// bounds it for a directory that never is quiet.
	settle, settleMax time.Duration
	// poll finds what notifications miss: network file systems, a directory that was replaced, an exhausted inotify limit.
	poll time.Duration
}

// NewManifests prepares to watch a directory; Run does it.
func NewManifests(dir string, proxy Proxy, logger *zap.Logger) *Manifests {
	store := NewStore()
	store.converter.proxy = proxy
	return &Manifests{
		Store: store,
		dir:   newDirectory(dir, store.converter, logger),
		log:   logger,
		pace:  pace{settle: 200 * time.Millisecond, settleMax: 2 * time.Second, poll: 10 * time.Second},
	}
}

// Run follows the directory until the context ends. A directory that cannot be read is a Problem, and is tried again.
func (m *Manifests) Run(ctx context.Context) error {
	events, rewatch, stop := m.notifications()
	defer stop()
	poll := time.NewTicker(m.pace.poll)
	defer poll.Stop()
	rewatch()
	m.scan()
	var settled <-chan time.Time
	var first time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			if settled == nil {
				first = time.Now()
			}
			settled = time.After(min(m.pace.settle, max(0, m.pace.settleMax-time.Since(first))))
		case <-settled:
			settled = nil
			m.scan()
		case <-poll.C:
			rewatch()
			m.scan()
		}
	}
}

func (m *Manifests) scan() {
	hadProblem := m.dir.problem != nil
	err := m.dir.scan()
	switch {
	case err != nil && !hadProblem && !m.dir.read:
		// Later it is a Problem, but nobody takes one before the first reading.
		m.log.Warn("manifest directory cannot be read; what is programmed stays", zap.String("directory", m.dir.path), zap.Error(err))
	case err == nil && hadProblem:
		m.log.Info("manifest directory can be read again")
	}
	if m.told == m.dir.version {
		return
	}
	m.told = m.dir.version
	lists := m.dir.lists()
	if !m.dir.read {
		// Nothing is known yet: an empty list would say that there is nothing.
		lists = map[Kind][]*record{KindFile: lists[KindFile]}
	}
	m.replace(lists)
}

// notifications tells of changes in the directory. Without inotify there is only the poll.
//
// The directory is watched rather than its files: an editor replaces a file, and the kubelet replaces the symlink ..data.
func (m *Manifests) notifications() (events <-chan fsnotify.Event, rewatch, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		m.log.Warn("changes of manifests are noticed late: no notifications", zap.Duration("poll", m.pace.poll), zap.Error(err))
		return nil, func() {}, func() {}
	}
	merged := make(chan fsnotify.Event)
	done := make(chan struct{})
	go m.drain(watcher, merged, done)
	rewatch = func() {
		// Again at each poll: a directory that was removed and made again is another one to inotify.
		if err := watcher.Add(m.dir.path); err != nil {
			m.log.Debug("no notifications for the manifest directory", zap.Error(err))
		}
	}
	stop = func() {
		close(done)
		_ = watcher.Close() // nothing left to lose
	}
	return merged, rewatch, stop
}

// drain passes on events; an error, which may be a queue that ran over, means that anything may have changed.
func (m *Manifests) drain(watcher *fsnotify.Watcher, merged chan<- fsnotify.Event, done <-chan struct{}) {
	for {
		var event fsnotify.Event
		select {
		case <-done:
			return
		case e, ok := <-watcher.Events:
			if !ok {
				return
			}
			event = e
		case err, ok := <-watcher.Errors:
			if !ok {
				return
			}
			m.log.Debug("notifications lost", zap.Error(err))
		}
		select {
		case merged <- event:
		case <-done:
			return
		}
	}
}

// LoadDir reads a directory of manifests once. An error means that the directory could not be read; what is wrong with a file
// in it is a Problem.
func LoadDir(dir string, proxy Proxy) (model.Changes, error) {
	store := NewStore()
	store.converter.proxy = proxy
	d := newDirectory(dir, store.converter, zap.NewNop())
	if err := d.scan(); err != nil {
		return model.Changes{}, fmt.Errorf("read manifests in %s: %w", dir, plain(err))
	}
	store.replace(d.lists())
	return store.Take(), nil
}
