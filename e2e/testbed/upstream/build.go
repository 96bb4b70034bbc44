package upstream

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Build prints a line at this interval while it compiles.
const heartbeat = 20 * time.Second

// Fetch downloads the modules that Build needs.
func Fetch(ctx context.Context, root string, set Set) error {
	for _, r := range wanted(set) {
		if err := r.makeSource(ctx, root); err != nil {
			return err
		}
		pin, err := r.pin(root)
		if err != nil {
			return err
		}
		if _, err := os.Stat(pin.dir); err == nil {
			continue
		}
		args := append([]string{"list", "-deps", "-test"}, r.flags(pin.version)...)
		for _, p := range r.programs {
			args = append(args, p.pkg)
		}
		list := r.command(ctx, root, args)
		list.Stderr = os.Stderr
		if err := list.Run(); err != nil {
			return fmt.Errorf("download %s %s (in %s): %w", r.name(), pin.version, list.Dir, err)
		}
	}
	return nil
}

func wanted(set Set) (all []release) {
	for _, r := range releases {
		if set.includes(r.set) {
			all = append(all, r)
		}
	}
	return all
}

// Programs are linked statically, so that they run in any guest. The caller's workspace and flags must not affect
// the pinned versions.
func (r release) command(ctx context.Context, root string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.source(root)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	return cmd
}

// Build builds the missing programs of a set for the checkout at root. The compiler also writes to out, so out must
// support concurrent writes, as files do.
func Build(ctx context.Context, root string, set Set, out io.Writer) error {
	return build(ctx, root, wanted(set), out)
}

func build(ctx context.Context, root string, releases []release, out io.Writer) error {
	for _, r := range releases {
		if err := r.build(ctx, root, out); err != nil {
			return err
		}
	}
	return nil
}

// The kernel releases the lock when the process ends.
func (r release) lock(root string, out io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(cache(root), 0o755); err != nil {
		return nil, fmt.Errorf("create the build cache: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(cache(root), r.name()+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the build cache: %w", err)
	}
	fd := int(file.Fd())
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil { // if this fails, the blocking Flock below returns the error
		fmt.Fprintln(out, "another build of "+r.name()+" is running: waiting for it")
		if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
	return func() { file.Close() }, nil
}

// build creates the release's directory atomically.
func (r release) build(ctx context.Context, root string, out io.Writer) error {
	unlock, err := r.lock(root, out)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.makeSource(ctx, root); err != nil {
		return err
	}
	pin, err := r.pin(root)
	if err != nil {
		return err
	}
	if _, err := os.Stat(pin.dir); err == nil {
		fmt.Fprintf(out, "%s %s is built: %s\n", r.name(), pin.version, pin.dir)
		return nil
	}
	unfinished := filepath.Join(cache(root), r.name()+".unfinished")
	if err := os.RemoveAll(unfinished); err != nil { // from a killed build
		return fmt.Errorf("clear the build cache: %w", err)
	}
	fmt.Fprintf(out, "building %s %s (first time only, %s)\n", r.name(), pin.version, r.cost)
	for _, p := range r.programs {
		if err := r.compile(ctx, root, p, pin.version, filepath.Join(unfinished, p.name), out); err != nil {
			return err
		}
	}
	if err := os.Rename(unfinished, pin.dir); err != nil {
		return fmt.Errorf("publish the build: %w", err)
	}
	fmt.Fprintf(out, "%s %s is built: %s\n", r.name(), pin.version, pin.dir)
	return nil
}

func (r release) compile(ctx context.Context, root string, p program, version, file string, out io.Writer) error {
	args := []string{"build"}
	if p.isTest() {
		args = []string{"test", "-c", "-vet=off"} // vet would check every dependency
	}
	args = append(append(args, "-o", file), r.flags(version)...)
	build := r.command(ctx, root, append(args, p.pkg))
	build.Stdout, build.Stderr = out, out
	// go removes its temporary files when interrupted, but not when killed.
	build.Cancel = func() error { return build.Process.Signal(os.Interrupt) }
	build.WaitDelay = 10 * time.Second

	start := time.Now()
	fmt.Fprintf(out, "  %s: compiling\n", p.name)
	stop := beat(out, p.name, start)
	err := build.Run()
	stop()
	if err != nil {
		return fmt.Errorf("build %s %s (in %s): %w", p.name, version, build.Dir, err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("build %s %s: %w", p.name, version, err)
	}
	fmt.Fprintf(out, "  %s: %d MiB after %s\n", p.name, info.Size()>>20, time.Since(start).Round(time.Second))
	return nil
}

func beat(out io.Writer, name string, start time.Time) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				fmt.Fprintf(out, "  %s: still compiling, %s\n", name, time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() { close(quit); <-done }
}
