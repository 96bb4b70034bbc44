package config

import (
	"bytes"
	"context"
	"slices"
	"time"
)

// Over returns what to run on while an agent that was started with other settings goes on: the settings that can change at
// run time are l's, the others stay running's. Waiting names those that wait for a restart.
func (l *Loaded) Over(running *Loaded) (next *Loaded, waiting []string) {
	over := *l
	for _, row := range table {
		was := row.value(&running.Settings).words()
		if row.when != restart || slices.Equal(was, row.value(&l.Settings).words()) {
			continue
		}
		row.value(&over.Settings).set(was)
		waiting = append(waiting, row.path)
	}
	return &over, waiting
}

// equal says whether all settings have the same values, whoever gave them.
func (l *Loaded) equal(o *Loaded) bool {
	return !slices.ContainsFunc(table, func(row setting) bool {
		return !slices.Equal(row.value(&l.Settings).words(), row.value(&o.Settings).words())
	})
}

// Watch looks at the file again and again until the context ends, and tells each change: a new configuration that was found
// right, or why the file cannot be used, once for each state of the file. Without a file it returns at once.
//
// It reads instead of asking for notifications: the file is small, ConfigMaps change by swapping symbolic links two folders
// up, and a node's notifications (inotify instances) run out.
func (f *Flags) Watch(ctx context.Context, started *Loaded, every time.Duration, changed func(*Loaded, error)) {
	if f.File == "" {
		return
	}
	w := &watcher{flags: f, told: started, judged: state{content: started.content}}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if loaded, err, tell := w.look(readFile(f.File)); tell {
				changed(loaded, err)
			}
		}
	}
}

// watcher decides what of a file's states is news.
type watcher struct {
	flags   *Flags
	told    *Loaded // the last good configuration
	failed  bool    // the last thing told was an error
	judged  state   // the last state that was looked into
	pending *state  // seen once
}

// state is what reading the file gave.
type state struct {
	content []byte
	problem string
}

func (s state) equal(o state) bool {
	return s.problem == o.problem && bytes.Equal(s.content, o.content)
}

// look takes what was read now. A state counts when it is read twice in a row: an editor's half-written file may be valid.
func (w *watcher) look(content []byte, readErr error) (loaded *Loaded, err error, tell bool) {
	now := state{content: content}
	if readErr != nil {
		now = state{problem: readErr.Error()}
	}
	if now.equal(w.judged) {
		w.pending = nil
		return nil, nil, false
	}
	if w.pending == nil || !now.equal(*w.pending) {
		w.pending = &now
		return nil, nil, false
	}
	w.judged, w.pending = now, nil
	return w.judge(content, readErr)
}

func (w *watcher) judge(content []byte, readErr error) (loaded *Loaded, err error, tell bool) {
	if err = readErr; err == nil {
		loaded, err = w.flags.load(content)
	}
	if err != nil {
		w.failed = true
		return nil, err, true
	}
	tell = w.failed || !loaded.equal(w.told)
	w.told, w.failed = loaded, false
	return loaded, nil, tell
}
