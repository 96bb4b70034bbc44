package manifests

import (
	"context"
	"fmt"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// Source reads Service, EndpointSlice and Node objects from the YAML and JSON files of a directory.
//
// Deleting a file deletes its objects, except for the last file: a directory without manifests looks like a volume that is not mounted,
// so all objects stay. A file that contains only a comment means that there are no objects.
type Source struct {
	*watch.Store
	dir    *directory
	log    *zap.Logger
	timing timing
}

// timing contains the delays before a change is read. Only tests change it.
type timing struct {
	// settle is the time to wait after the last notification before the files are read, because a file that is being written is
	// incomplete.
	settle time.Duration
	// poll is the interval between reads without notifications. Network file systems send no notifications, a recreated directory must be
	// watched again, and notifications of a busy directory may never stop.
	poll time.Duration
	// unfinished is how long a file that lost objects must stay unchanged before it counts as complete.
	unfinished time.Duration
	// hung is the time after which an unfinished read becomes a Problem.
	hung time.Duration
}

// New returns a source for a directory. Run starts it.
func New(dir string, proxy watch.Proxy, logger *zap.Logger) *Source {
	store := watch.NewStore(proxy)
	return &Source{
		Store:  store,
		dir:    newDirectory(dir, store, logger),
		log:    logger,
		timing: timing{settle: 200 * time.Millisecond, poll: 10 * time.Second, unfinished: 5 * time.Second, hung: 30 * time.Second},
	}
}

// Run follows the directory until the context ends. A directory that cannot be read is a Problem; Run retries.
//
// It watches the directory and not its files, because editors replace a file and the kubelet replaces the symlink ..data.
func (m *Source) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		m.log.Warn("no file notifications; polling for manifest changes", zap.Duration("interval", m.timing.poll), zap.Error(err))
		m.follow(ctx, nil, nil, m.read)
		return nil
	}
	if m.follow(ctx, watcher.Events, watcher.Errors, func() time.Duration {
		// Add the directory again before each read, because inotify does not follow a replaced directory. Watching the same
		// directory again is a no-op.
		if err := watcher.Add(m.dir.path); err != nil {
			m.log.Debug("no file notifications for the manifest directory", zap.Error(err))
		}
		return m.read()
	}) {
		_ = watcher.Close() // an error at this point has no consequences
	}
	return nil
}

// follow reads after notifications and at regular intervals until the context ends, one read at a time. A read that hangs is a Problem.
// follow reports whether the last read has ended.
func (m *Source) follow(ctx context.Context, events <-chan fsnotify.Event, lost <-chan error, read func() time.Duration) bool {
	var settled, late <-chan time.Time
	var ended chan time.Duration // nil while no read runs
	begin := func() {
		if ended != nil {
			settled = time.After(m.timing.settle)
			return
		}
		done := make(chan time.Duration, 1)
		settled, ended, late = nil, done, time.After(m.timing.hung)
		go func() { done <- read() }()
	}
	poll := time.NewTicker(m.timing.poll)
	defer poll.Stop()
	begin()
	for {
		select {
		case <-ctx.Done():
			return m.await(ended)
		case <-events:
			settled = time.After(m.timing.settle)
		case err := <-lost: // after an error such as a queue overflow, anything may have changed
			m.log.Debug("file notifications lost", zap.Error(err))
			settled = time.After(m.timing.settle)
		case <-settled:
			begin()
		case <-poll.C:
			begin()
		case <-late:
			m.reportHung()
		case held := <-ended:
			ended, late = nil, nil
			m.ReplaceProblems(model.FileRef(m.dir.path), m.dir.problem)
			if held > 0 && settled == nil {
				settled = time.After(held)
			}
		}
	}
}

// await waits briefly for a read, and reports whether it has ended.
func (m *Source) await(ended <-chan time.Duration) bool {
	if ended == nil {
		return true
	}
	select {
	case <-ended:
		return true
	case <-time.After(m.timing.settle):
		return false
	}
}

// reportHung also logs a warning, because the agent does not call Take before the first complete list.
func (m *Source) reportHung() {
	m.log.Warn("reading the manifest directory has not finished; kernel state unchanged", zap.String("directory", m.dir.path))
	p := watch.Problems{Object: model.FileRef(m.dir.path)}
	p.Add("", "", "reading the directory has not finished after %s. Objects read earlier remain in use. Check the disk or network file system", m.timing.hung)
	m.ReplaceProblems(p.Object, p.Done())
}

// held is the delay until the next read if a file may be incomplete, otherwise 0.
func (m *Source) read() (held time.Duration) {
	hadProblem := m.dir.problem != nil
	m.dir.unfinished = m.timing.unfinished
	changed, err := m.dir.scan()
	held = m.dir.held()
	switch {
	case err != nil && !hadProblem && !m.dir.read:
		// The agent does not call Take before the first complete list, so it would not see this error. Later errors are Problems.
		m.log.Warn("manifest directory not readable; kernel state unchanged", zap.String("directory", m.dir.path), zap.Error(err))
	case err == nil && hadProblem:
		m.log.Info("manifest directory readable again")
	}
	if !changed {
		return held
	}
	lists := m.dir.lists()
	if !m.dir.read {
		// An empty list would mean that the cluster has no objects, but the source does not know that yet.
		lists = map[model.Kind][]*watch.Record{model.KindFile: lists[model.KindFile]}
	}
	m.Replace(lists)
	return held
}

// Load reads a directory of manifests once. It returns an error if the directory cannot be read. Mistakes in a file are
// Problems.
func Load(dir string, proxy watch.Proxy) (model.Changes, error) {
	store := watch.NewStore(proxy)
	d := newDirectory(dir, store, zap.NewNop())
	if _, err := d.scan(); err != nil {
		return model.Changes{}, fmt.Errorf("read manifests in %s: %w", dir, withoutPath(err))
	}
	store.Replace(d.lists())
	return store.Take(), nil
}
