package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/bench"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

// night runs parts of the long tests one after the other, in a clone of the last commit. dir is outside the checkout
// and contains the results until "ran keep" adds them to the record.
type night struct {
	dir    string
	screen io.Writer
	lines  []record.Line // lines of the record, followed by new ones
}

func (n *night) gathered() string { return filepath.Join(n.dir, "record.jsonl") }
func (n *night) results() string  { return filepath.Join(n.dir, "results.jsonl") }
func (n *night) clone() string    { return filepath.Join(n.dir, "clone") }

func openNight() (*night, error) {
	cache := cachedir.Path(".", "nightly")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	kept, err := record.Read[record.Line](record.LinesFile)
	if err != nil {
		return nil, err
	}
	n := &night{dir: cache, screen: os.Stderr}
	fresh, err := record.Read[record.Line](n.gathered())
	n.lines = append(kept, fresh...)
	return n, err
}

// nightly runs the named parts, or the oldest parts that fit into the given hours, or all parts.
func nightly(args []string) error {
	flags := flag.NewFlagSet("ran nightly", flag.ContinueOnError)
	part := flags.String("part", "", "the part to run, or a pattern such as kubernetes-*")
	hours := flags.Float64("hours", 0, "run the parts with the oldest results that fit into this time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	n, err := openNight()
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(n.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another make nightly is running on this machine (%s: %w)", lock.Name(), err)
	}
	chosen, err := choose(*part, *hours, record.Ages(n.lines, commitsAfter))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	bad := 0
	for i, p := range chosen {
		fmt.Fprintf(n.screen, "%s %s (%d of %d, about %d minutes): %s\n", time.Now().Format(time.TimeOnly), p.Name, i+1, len(chosen), p.Minutes, p.Proves)
		line, err := n.run(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if line.State != record.Passed {
			bad++
		}
		fmt.Fprintf(n.screen, "%s %s: %s in %d s, %d passed, %d failed\n", time.Now().Format(time.TimeOnly), p.Name, line.State, line.Seconds, line.Passed, line.Failed)
		for _, name := range line.Failing {
			fmt.Fprintln(n.screen, "   ", name)
		}
	}
	fmt.Fprintln(n.screen, "make nightly-record adds the results to the record")
	if bad > 0 {
		return fmt.Errorf("%d of %d parts did not pass", bad, len(chosen))
	}
	return nil
}

// named returns the parts whose names match a pattern.
func named(pattern string) (parts []record.Part, err error) {
	for _, p := range record.Parts {
		matches, err := path.Match(pattern, p.Name)
		if err != nil {
			return nil, err
		}
		if matches {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("there is no part %q; the parts are %s", pattern, record.Names())
	}
	return parts, nil
}

// choose returns the named parts. Without a name, it returns the parts that fit into the hours, oldest first.
func choose(name string, hours float64, ages []record.Age) ([]record.Part, error) {
	if name != "" {
		return named(name)
	}
	since := func(a record.Age) string {
		if a.Line == nil || a.Line.State != record.Passed {
			return ""
		}
		return a.Line.Date
	}
	slices.SortStableFunc(ages, func(a, b record.Age) int { return strings.Compare(since(a), since(b)) })
	left := time.Duration(hours * float64(time.Hour))
	var chosen []record.Part
	for _, a := range ages {
		takes := time.Duration(a.Part.Minutes) * time.Minute
		if hours > 0 && takes > left {
			continue
		}
		left -= takes
		chosen = append(chosen, a.Part)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no part fits into %g hours", hours)
	}
	return chosen, nil
}

// run runs a part and appends a line to the collected results.
func (n *night) run(ctx context.Context, p record.Part) (record.Line, error) {
	work, commit, err := n.place(p)
	if err != nil {
		return record.Line{}, err
	}
	if err := n.checkout(commit); err != nil {
		return record.Line{}, err
	}
	seed, err := seedOf(filepath.Join(work, "seed"))
	if err != nil {
		return record.Line{}, err
	}
	fmt.Fprintf(n.screen, "commit %.8s, seed %d, output in %s\n", commit, seed, work)
	line := record.Line{Part: p.Name, Commit: commit, Seed: seed}
	var tests []record.Test
	var broken []string
	for i, command := range p.Targets {
		target := strings.ReplaceAll(command, "$SEED", strconv.FormatInt(seed, 10))
		line.Targets = append(line.Targets, target)
		step, err := n.step(ctx, filepath.Join(work, strconv.Itoa(i)), target, p.Resumes)
		if err != nil {
			return line, err
		}
		line.Seconds += step.seconds
		tests = append(tests, step.tests...)
		if step.failed {
			broken = append(broken, "make "+target)
		}
	}
	tests = withoutExcused(p.Name, tests)
	line.Date = time.Now().UTC().Format(time.RFC3339)
	concluded := line.Conclude(tests, append(broken, forgotten(p.Name, n.clone(), tests)...))
	line = concluded.After(n.lines)
	for i := range tests {
		tests[i].Part, tests[i].Commit, tests[i].Date = p.Name, commit, line.Date
	}
	if slices.ContainsFunc(tests, bench.Shows) {
		source, err := agentSource(n.clone())
		if err != nil {
			return line, err
		}
		for i := range tests {
			tests[i].Source = source
		}
	}
	n.lines = append(n.lines, line)
	err = errors.Join(record.Append(n.results(), tests...), record.Append(n.gathered(), line), n.end(concluded, work))
	return line, err
}

// end removes the output of a run without failures, even if the part failed before. It keeps the output of the last other run.
func (n *night) end(line record.Line, work string) error {
	if line.State == record.Passed {
		return os.RemoveAll(work)
	}
	kept := filepath.Join(n.dir, "failed", line.Part)
	if err := errors.Join(os.RemoveAll(kept), os.MkdirAll(filepath.Dir(kept), 0o755)); err != nil {
		return err
	}
	fmt.Fprintln(n.screen, "its output is kept in", kept)
	return os.Rename(work, kept)
}

// withoutExcused drops tests that were skipped on the host, if they passed in a guest or nightly.txt assigns them to
// another part.
func withoutExcused(part string, tests []record.Test) (rest []record.Test) {
	passed := map[string]bool{}
	for _, t := range tests {
		passed[t.Name()] = passed[t.Name()] || t.Status == "PASS"
	}
	for _, t := range tests {
		top, _, _ := strings.Cut(t.Test, "/")
		others := func(l leftTest) bool { return l.part != part && l.name.MatchString(t.Package+" "+top) }
		if t.Status != "SKIP" || t.Kernel != "" || !passed[t.Name()] && !slices.ContainsFunc(leftOut(), others) {
			rest = append(rest, t)
		}
	}
	return rest
}

// place returns the directory for a part's progress, and the commit to test. A part that resumes continues with its
// earlier commit.
func (n *night) place(p record.Part) (dir, commit string, err error) {
	commit, err = git(".", "rev-parse", "HEAD")
	if err != nil {
		return "", "", err
	}
	begun, err := filepath.Glob(filepath.Join(n.dir, p.Name, "*"))
	if err != nil {
		return "", "", err
	}
	for _, dir := range begun {
		if old := filepath.Base(dir); p.Resumes && commitsAfter(old) != record.Unknown {
			fmt.Fprintf(n.screen, "continuing with commit %.8s\n", old)
			commit = old
		} else if old != commit {
			if err := os.RemoveAll(dir); err != nil {
				return "", "", err
			}
		}
	}
	dir = filepath.Join(n.dir, p.Name, commit)
	return dir, commit, os.MkdirAll(dir, 0o755)
}

// checkout checks out a commit in the clone. It keeps ignored files, so that little needs to be rebuilt.
func (n *night) checkout(commit string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(n.clone(), ".git")); err != nil {
		if _, err := git(".", "clone", "--quiet", "--no-checkout", here, n.clone()); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"fetch", "--quiet", here, commit}, {"checkout", "--quiet", "--force", "--detach", commit}, {"clean", "--quiet", "-fd"}} {
		if _, err := git(n.clone(), args...); err != nil {
			return err
		}
	}
	return nil
}

type step struct {
	seconds int
	tests   []record.Test
	failed  bool
}

// step runs make in the clone, unless an earlier run has completed the target.
func (n *night) step(ctx context.Context, dir, target string, resumes bool) (step, error) {
	done := filepath.Join(dir, "done.json")
	if ended, err := record.Read[[2]int](done); err == nil && len(ended) == 1 {
		tests, err := record.ReadTests(filepath.Join(dir, "out"))
		return step{ended[0][0], tests, ended[0][1] != 0}, err
	}
	out := filepath.Join(dir, "out")
	if !resumes {
		if err := os.RemoveAll(dir); err != nil {
			return step{}, err
		}
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return step{}, err
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return step{}, err
	}
	defer log.Close()
	exe, err := os.Executable()
	if err != nil {
		return step{}, err
	}
	fmt.Fprintf(n.screen, "%s make %s\n", time.Now().Format(time.TimeOnly), target)
	began := time.Now()
	// The shell splits target into words. Every program that writes results gets its own directory.
	cmd := exec.CommandContext(ctx, "sh", "-c", `exec make --no-print-directory OUT="$0" gate="$0/gate" recording="$1 test $0/host.jsonl" `+target, out, exe)
	cmd.Dir = n.clone()
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
	cmd.Stdout = io.MultiWriter(n.screen, log)
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // make does not forward signals
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute // time for guests to stop
	failure := cmd.Run()
	if ctx.Err() != nil {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		return step{}, errors.New("interrupted; the same command continues")
	}
	var exit *exec.ExitError
	if failure != nil && !errors.As(failure, &exit) {
		return step{}, failure
	}
	ended := [2]int{int(time.Since(began).Seconds()), cmd.ProcessState.ExitCode()}
	if err := record.Write(done, [][2]int{ended}); err != nil {
		return step{}, err
	}
	tests, err := record.ReadTests(out)
	return step{ended[0], tests, failure != nil}, err
}

// seedOf returns the seed of a resumed run, or a new one.
func seedOf(file string) (int64, error) {
	if text, err := os.ReadFile(file); err == nil {
		return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	seed := time.Now().Unix() % 1_000_000_000
	return seed, os.WriteFile(file, fmt.Appendln(nil, seed), 0o644)
}

func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, complaint.String())
	}
	return strings.TrimSpace(string(out)), nil
}
