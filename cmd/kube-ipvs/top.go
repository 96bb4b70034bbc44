//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

func newTop(m *machine.Machine) *cobra.Command {
	t := topCommand{machine: m, list: listFlags{inspection: inspection{forms: []string{asTable, asWide, asJSON, asYAML}}}}
	cmd := &cobra.Command{
		Use:   "top [NAMESPACE/NAME | NAME -n NAMESPACE]",
		Short: "Show the current load of Services and endpoints",
		Long: `top shows the open connections of each frontend, and its connections, packets and bytes per second,
averaged since the previous update. With -o wide, or the key e, it also shows the endpoints: their share
of the new connections, their share of the weights, and whether they are draining.

In a terminal, top updates a full-screen view; h shows the keys. With --batch, or if the output is not a
terminal, it prints a table at every interval. The first numbers appear after one interval.`,
		Example: `  kube-ipvs top
  kube-ipvs top -n shop -o wide
  kube-ipvs top --batch --iterations 1 --sort-by out/s
  kube-ipvs top -b -n shop -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t.cmd, t.args = cmd, args
			if out, isFile := cmd.OutOrStdout().(*os.File); isFile && !t.batch && !t.document() && term.IsTerminal(int(out.Fd())) && term.IsTerminal(int(os.Stdin.Fd())) {
				return t.live(out)
			}
			return t.print()
		},
	}
	cmd.Flags().BoolVarP(&t.batch, "batch", "b", false, "print tables one after another, for pipes and files")
	cmd.Flags().DurationVar(&t.interval, "interval", 2*time.Second, "time between two updates")
	cmd.Flags().IntVar(&t.iterations, "iterations", 0, "number of updates; 0 means no limit, or 1 with -o json or yaml")
	addCheck(cmd, func() error {
		switch {
		case t.interval < 100*time.Millisecond:
			return fmt.Errorf("--interval %s: use at least 100ms", t.interval)
		case t.iterations < 0:
			return fmt.Errorf("--iterations %d: use 0 or more", t.iterations)
		}
		return nil
	})
	t.list.addFlags(cmd)
	return cmd
}

type topCommand struct {
	machine    *machine.Machine
	list       listFlags
	batch      bool
	interval   time.Duration
	iterations int
	cmd        *cobra.Command
	args       []string

	services inspect.ServiceList
	asked    time.Time // when the Services were requested from the agent
	stale    string    // why services may be outdated
	before   inspect.Counts
	at       time.Time
}

// askAgain is the interval at which the Services are requested again: on a large node, the agent's answer is large.
const askAgain = 10 * time.Second

func (t *topCommand) document() bool { return t.list.output == asJSON || t.list.output == asYAML }

// next reads the counters, and returns the changes since the previous reading.
func (t *topCommand) next() (inspect.TopList, error) {
	if time.Since(t.asked) >= askAgain {
		services, err := t.list.services(t.cmd, t.machine, t.args)
		switch {
		case err == nil:
			t.services, t.stale = services, ""
		case t.asked.IsZero():
			return inspect.TopList{}, err
		default: // the agent may be restarting
			t.stale = "changes of Services since the last answer of the agent: " + err.Error()
		}
		t.asked = time.Now()
	}
	now, err := t.machine.CountsOf(t.cmd.Context(), t.list.socket)
	if err != nil {
		return inspect.TopList{}, err
	}
	before, at := t.before, t.at
	t.before, t.at = now, time.Now()
	list := inspect.TopOf(t.services, before, now, t.at.Sub(at).Seconds())
	if t.stale != "" {
		list.Unknown = append(slices.Clone(list.Unknown), t.stale)
	}
	if why := t.machine.StoppedCounters(t.cmd.Context()); why != "" {
		list.Unknown = append(slices.Clone(list.Unknown), "connections, packets and bytes per second: "+why)
	}
	return list, nil
}

func (t *topCommand) print() error {
	if _, err := t.next(); err != nil {
		return err
	}
	if why := t.machine.StoppedCounters(t.cmd.Context()); why != "" {
		fmt.Fprintln(t.cmd.ErrOrStderr(), why)
	}
	last := t.iterations
	if last == 0 && t.document() {
		last = 1
	}
	for n := 1; last == 0 || n <= last; n++ {
		if wait(t.cmd.Context(), t.interval) != nil {
			return nil // interrupted
		}
		list, err := t.next()
		if err == nil {
			err = inspect.Write(t.cmd.OutOrStdout(), t.list.output, list, func(w io.Writer) error { return inspect.PrintTop(w, list, t.list.table()) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen with a hidden cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	goHome      = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

func (t *topCommand) live(out *os.File) (err error) {
	screen := inspect.TopScreen{Endpoints: t.list.output == asWide}
	if err := screen.SortBy(t.list.sortBy); err != nil {
		return err
	}
	in := int(os.Stdin.Fd())
	before, err := term.MakeRaw(in)
	if err != nil {
		return fmt.Errorf("prepare the terminal: %w; use --batch", err)
	}
	t.cmd.SetErr(io.Discard) // the screen shows what is unknown
	fmt.Fprint(out, enterScreen)
	defer func() {
		t.cmd.SetErr(nil)
		_, failed := fmt.Fprint(out, leaveScreen)
		err = errors.Join(err, failed, term.Restore(in, before))
	}()
	keys := make(chan rune)
	go readKeys(os.Stdin, keys)
	list, err := t.next()
	at, updates := time.Now(), 0
	ticks := time.NewTicker(t.interval)
	defer ticks.Stop()
	var reading chan error // reading many counters takes a while, so a goroutine does it while this loop handles keys
	var read inspect.TopList
	for err == nil {
		draw(out, &screen, list, at)
		select {
		case key, open := <-keys:
			if !open || screen.Key(key) {
				return nil
			}
		case <-ticks.C:
			if reading == nil && !screen.Paused {
				reading = make(chan error, 1)
				go func(done chan<- error) {
					var err error
					read, err = t.next()
					done <- err
				}(reading)
			}
		case err = <-reading:
			list, at, reading = read, time.Now(), nil
			if updates++; updates == t.iterations {
				draw(out, &screen, list, at)
				return err
			}
		case <-t.cmd.Context().Done():
			return nil
		}
	}
	return err
}

func draw(out *os.File, screen *inspect.TopScreen, list inspect.TopList, at time.Time) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil {
		width, height = 80, 24
	}
	title := "kube-ipvs top " + at.Format("15:04:05")
	fmt.Fprint(out, goHome+strings.Join(screen.Lines(list, title, width, height), clearLine+"\r\n")+clearLine+clearBelow)
}

func readKeys(in io.Reader, keys chan<- rune) {
	defer close(keys)
	buffer := make([]byte, 64)
	for {
		n, err := in.Read(buffer)
		if err != nil {
			return
		}
		for _, key := range inspect.ParseKeys(string(buffer[:n])) {
			keys <- key
		}
	}
}
