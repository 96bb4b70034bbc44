package config

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"
)

// Over returns the settings for an agent that is already running. Settings that can change at run time have l's values, and all others keep their
// running values. So do settings whose new value would conflict with a running one. waiting lists the paths of changed settings that require a
// restart.
func (l *Loaded) Over(running *Loaded) (next *Loaded, waiting []string) {
	over := *l
	for _, row := range table {
		before := row.value(&running.Settings).words()
		if row.applies != afterRestart || slices.Equal(before, row.value(&l.Settings).words()) {
			continue
		}
		row.value(&over.Settings).set(before)
		waiting = append(waiting, row.path)
	}
	for path := over.newInConflict(running); path != ""; path = over.newInConflict(running) {
		row := rowOf(path)
		row.value(&over.Settings).set(row.value(&running.Settings).words())
		waiting = append(waiting, path)
	}
	return &over, waiting
}

// newInConflict returns a setting that differs from the running one and is part of a conflict, or "" if there is none.
func (l *Loaded) newInConflict(running *Loaded) string {
	changed := l.Changed(running)
	for _, c := range conflicts {
		if !c.found(&l.Settings) {
			continue
		}
		for _, path := range c.between {
			if slices.Contains(changed, path) {
				return path
			}
		}
	}
	return ""
}

// Changed returns the settings with different values, regardless of their origins.
func (l *Loaded) Changed(before *Loaded) (paths []string) {
	for _, row := range table {
		if !slices.Equal(row.value(&l.Settings).words(), row.value(&before.Settings).words()) {
			paths = append(paths, row.path)
		}
	}
	return paths
}

func (l *Loaded) equal(o *Loaded) bool { return len(l.Changed(o)) == 0 }

// hungFor is the number of intervals after which an unfinished read of the file counts as hung.
const hungFor = 6

var errHung = errors.New("read the configuration: the read hangs, so changes have no effect; check the file's disk or network file system")

// Watch polls the file until the context ends. For each new version of the file, it calls changed with the new configuration, or
// with the reason why the file cannot be used. Without a file it returns immediately.
//
// It polls instead of using inotify. The file is small, the kubelet updates a ConfigMap by replacing a symbolic link in another directory, and a node
// can run out of inotify instances.
func (f *Flags) Watch(ctx context.Context, started *Loaded, interval time.Duration, changed func(*Loaded, error)) {
	if f.File != "" {
		newFileWatch(f, started).run(ctx, interval, func() ([]byte, error) { return readFile(f.File) }, changed)
	}
}

type fileWatch struct {
	flags    *Flags
	good     *Loaded // the last valid configuration
	failed   bool    // the last report was an error
	reported version // the last version that was loaded
	pending  *version
}

type version struct {
	content []byte
	err     string
}

func (v version) equal(o version) bool { return v.err == o.err && bytes.Equal(v.content, o.content) }

func newFileWatch(f *Flags, started *Loaded) *fileWatch {
	return &fileWatch{flags: f, good: started, reported: version{content: started.content}}
}

// run reads the file once per interval, one read at a time.
func (w *fileWatch) run(ctx context.Context, interval time.Duration, read func() ([]byte, error), changed func(*Loaded, error)) {
	take := func(content []byte, err error) {
		if loaded, err, report := w.poll(content, err); report {
			changed(loaded, err)
		}
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	ended := make(chan func(), 1)
	waits := 0 // intervals since the current read began, or 0 if no read is running
	for {
		select {
		case <-ctx.Done():
			return
		case takeRead := <-ended:
			waits = 0
			takeRead()
		case <-tick.C:
			if waits++; waits > hungFor {
				take(nil, errHung)
			}
			if waits == 1 {
				go func() {
					content, err := read()
					ended <- func() { take(content, err) }
				}()
			}
		}
	}
}

// poll handles the result of one read. A version is accepted after two identical reads in a row, because a half-written file can
// be valid.
func (w *fileWatch) poll(content []byte, readErr error) (loaded *Loaded, err error, report bool) {
	now := version{content: content}
	if readErr != nil {
		now = version{err: readErr.Error()}
	}
	if now.equal(w.reported) {
		w.pending = nil
		return nil, nil, false
	}
	if w.pending == nil || !now.equal(*w.pending) {
		w.pending = &now
		return nil, nil, false
	}
	w.reported, w.pending = now, nil
	if err = readErr; err == nil {
		loaded, err = w.flags.load(content)
	}
	if err != nil {
		w.failed = true
		return nil, err, true
	}
	report = w.failed || !loaded.equal(w.good)
	w.good, w.failed = loaded, false
	return loaded, nil, report
}
