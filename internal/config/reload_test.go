package config

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
)

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func withScheduler(name string) string { return head + "ipvs: {scheduler: " + name + "}\n" }

func TestFileWatch(t *testing.T) {
	const nothing = ""
	missing := &fs.PathError{Op: "open", Path: "f", Err: fs.ErrNotExist}
	f := parse(t, "--ipvs-sync-period=1m")
	f.File = "f"
	started, err := f.load([]byte(withScheduler("rr")))
	if err != nil {
		t.Fatal(err)
	}
	w := newFileWatch(f, started)
	for i, step := range []struct {
		content string
		err     error
		want    string // the reported scheduler, part of the reported error, or empty for no report
	}{
		{withScheduler("rr"), nil, nothing},
		{withScheduler("wl"), nil, nothing}, // half-written
		{withScheduler("wlc"), nil, nothing},
		{withScheduler("wlc"), nil, "wlc"},
		{withScheduler("wlc"), nil, nothing},
		{"# a comment\n" + withScheduler("wlc"), nil, nothing},
		{"# a comment\n" + withScheduler("wlc"), nil, nothing}, // no setting changed
		{withScheduler("fastest"), nil, nothing},
		{withScheduler("fastest"), nil, `ipvs.scheduler "fastest"`},
		{withScheduler("fastest"), nil, nothing}, // reported only once
		{"", missing, nothing},                   // while the file is replaced
		{withScheduler("fastest"), nil, nothing},
		{"", missing, nothing},
		{"", missing, "file does not exist"},
		{"", missing, nothing},
		{withScheduler("wlc"), nil, nothing},
		{withScheduler("wlc"), nil, "wlc"}, // valid again, although unchanged
		{withScheduler("sh"), nil, nothing},
		{withScheduler("wlc"), nil, nothing},
		{withScheduler("sh"), nil, nothing},
		{withScheduler("sh"), nil, "sh"},
	} {
		loaded, err, report := w.poll([]byte(step.content), step.err)
		switch {
		case report != (step.want != nothing):
			t.Fatalf("step %d: reported is %t (%v, %v), want %q", i, report, loaded, err, step.want)
		case !report:
		case err != nil && !strings.Contains(err.Error(), step.want):
			t.Errorf("step %d: got error %v, want %q", i, err, step.want)
		case err == nil && (loaded.Scheduler != step.want || loaded.SyncPeriod != time.Minute):
			t.Errorf("step %d: got scheduler %s and sync period %s, want %s and 1m from the flag", i, loaded.Scheduler, loaded.SyncPeriod, step.want)
		}
	}
}

// The kubelet updates a mounted ConfigMap by replacing a symbolic link.
func TestWatchFollowsConfigMap(t *testing.T) {
	dir := t.TempDir()
	mount := func(version, content string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "c.yaml"), content)
		if err := errors.Join(os.Symlink(version, filepath.Join(dir, "..new")), os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	mount("..1", withScheduler("rr"))
	if err := os.Symlink("..data/c.yaml", filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	f := &Flags{File: filepath.Join(dir, "c.yaml")}
	started, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	reports, ended := make(chan string), make(chan struct{})
	go func() {
		defer close(ended)
		f.Watch(ctx, started, time.Millisecond, func(l *Loaded, err error) {
			if err != nil {
				reports <- err.Error()
				return
			}
			reports <- l.Scheduler
		})
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-reports:
			if !strings.Contains(got, want) {
				t.Fatalf("reported %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q was not reported", want)
		}
	}
	mount("..2", withScheduler("wlc"))
	expect("wlc")
	mount("..3", withScheduler("fastest"))
	expect(`c.yaml:3: ipvs.scheduler "fastest"`)
	mount("..4", withScheduler("sh"))
	expect("sh")
	stop()
	<-ended
}

func TestWatchWithoutFileReturns(t *testing.T) {
	(&Flags{}).Watch(t.Context(), &Loaded{}, time.Hour, func(*Loaded, error) { t.Error("Watch reported a change without a file") })
}

// Over changes the settings that can change at run time, and reports the others as waiting.
func TestOver(t *testing.T) {
	running, err := parse(t).Load()
	if err != nil {
		t.Fatal(err)
	}
	changed, err := parse(t, "--ipvs-scheduler=wlc", "--log-level=debug", "--ipvs-sync-period=1m", "--metrics-bind-address=", "--oom-score-adj=0").Load()
	if err != nil {
		t.Fatal(err)
	}
	next, waiting := changed.Over(running)
	if d := cmp.Diff([]string{"metricsBindAddress", "oomScoreAdj"}, waiting); d != "" {
		t.Errorf("waiting (-want +got)\n%s", d)
	}
	want := changed.Settings
	want.MetricsAddress, want.OOMScoreAdj = running.MetricsAddress, running.OOMScoreAdj
	if d := cmp.Diff(want, next.Settings, byText); d != "" {
		t.Errorf("next (-want +got)\n%s", d)
	}
	if changed.MetricsAddress != "" {
		t.Error("Over changed its receiver")
	}
}

// TestOverNeverConflicts: whatever was running and whatever is in the file, the settings in effect do not conflict.
func TestOverNeverConflicts(t *testing.T) {
	valid := func(l *Loaded) bool {
		return !slices.ContainsFunc(conflicts, func(c conflict) bool { return c.found(&l.Settings) })
	}
	draw := func(t *rapid.T, paths []string) *Loaded {
		l := &Loaded{Settings: newLoading().settings}
		for _, path := range paths {
			row := rowOf(path)
			a, b := samples(*row)
			text := rapid.SampledFrom([]string{row.byDefault, a, b}).Draw(t, path)
			switch path {
			case "dataPlane":
				text = rapid.SampledFrom([]string{"auto", "ipvs", "nftables", "userspace"}).Draw(t, path)
			case "metrics.servicePorts", "metrics.endpoints":
				text = rapid.SampledFrom([]string{"0", "100"}).Draw(t, path)
			}
			before := row.value(&l.Settings).words()
			if wrong := row.value(&l.Settings).set(row.words(text)); wrong != nil {
				t.Fatal(wrong)
			}
			if !valid(l) {
				row.value(&l.Settings).set(before)
			}
		}
		return l
	}
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(conflicts).Draw(t, "conflict")
		paths := slices.Concat([]string{"dataPlane", "forward.addresses"}, c.between)
		running, changed := draw(t, paths), draw(t, paths)
		next, waiting := changed.Over(running)
		if !valid(next) {
			t.Errorf("over %v, %v is in conflict: %v wait", running.Changed(&Loaded{Settings: newLoading().settings}), next.Changed(running), waiting)
		}
	})
}

// atRunTime contains the settings that a running agent adopts.
type atRunTime struct {
	Compile                                              compile.Settings
	SyncPeriod, MinSyncPeriod, CheckPeriod, DrainTimeout time.Duration
	LogLevel                                             string
}

func takenAtRunTime(s *Settings) atRunTime {
	return atRunTime{s.compile(1), s.SyncPeriod, s.MinSyncPeriod, s.CheckPeriod, s.DrainTimeout, s.LogLevel}
}

// A changed setting either reaches the running agent or is reported as waiting for a restart, depending on the table.
func TestSettingsApplyAsTheTableSays(t *testing.T) {
	// Some settings have an effect only if another setting has a certain value. These functions set that value.
	matters := map[string]func(*Settings){
		"detectLocal.bridgeInterface":     func(s *Settings) { s.LocalMode = localByBridge },
		"detectLocal.interfaceNamePrefix": func(s *Settings) { s.LocalMode = localByInterfacePrefix },
		"conntrack.maxPerCore":            func(s *Settings) { s.Conntrack.Min = 0 },
		"conntrack.min":                   func(s *Settings) { s.Conntrack.MaxPerCore = 1 },
	}
	for _, row := range table {
		t.Run(row.path, func(t *testing.T) {
			before, after := &Loaded{Settings: newLoading().settings}, &Loaded{Settings: newLoading().settings}
			a, b := samples(row)
			for l, text := range map[*Loaded]string{before: a, after: b} {
				if set := matters[row.path]; set != nil {
					set(&l.Settings)
				}
				if wrong := row.value(&l.Settings).set(row.words(text)); wrong != nil {
					t.Fatal(wrong)
				}
			}
			next, waiting := after.Over(before)
			changes := !cmp.Equal(takenAtRunTime(&before.Settings), takenAtRunTime(&next.Settings), byText)
			if changes != (row.applies == immediately) {
				t.Errorf("a change reaches the running agent: %t, but the table says %q", changes, row.applies)
			}
			if d := cmp.Diff(map[applies][]string{immediately: nil, afterRestart: {row.path}}[row.applies], waiting); d != "" {
				t.Errorf("settings that wait for a restart (-want +got)\n%s", d)
			}
		})
	}
}

// If the file system hangs while the agent is running, this is reported as an error of the file. Once the file system
// responds, the file is used again.
func TestFileWatchHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := parse(t)
		f.File = "f"
		started, err := f.load([]byte(withScheduler("rr")))
		if err != nil {
			t.Fatal(err)
		}
		var hangs atomic.Bool
		reads := 0
		hangs.Store(true)
		read := func() ([]byte, error) {
			for reads++; hangs.Load(); {
				time.Sleep(time.Second)
			}
			return []byte(withScheduler("wlc")), nil
		}
		ctx, stop := context.WithCancel(t.Context())
		var errs []error
		var last *Loaded
		go newFileWatch(f, started).run(ctx, time.Second, read, func(l *Loaded, err error) { errs, last = append(errs, err), l })
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(errs) != 1 || !errors.Is(errs[0], errHung) || reads != 1 {
			t.Errorf("got errors %v after %d reads", errs, reads)
		}
		hangs.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if last == nil || last.Scheduler != "wlc" {
			t.Errorf("after the hang, the configuration is %v, and the errors are %v", last, errs)
		}
		stop()
	})
}
