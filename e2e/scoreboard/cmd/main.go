// Command cmd measures the rows of the scoreboard and writes docs/scoreboard.md: go run ./e2e/scoreboard/cmd [-short] [ROW...]
//
// Without arguments it measures every row without a result, so it continues an interrupted run. With -page it only writes the page.
// It must run in the root of the repository.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/scoreboard"
)

var (
	short    = flag.Bool("short", false, "measure in small sizes")
	pageOnly = flag.Bool("page", false, "write the page from the results, and measure nothing")
)

func main() {
	flag.Parse()
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "scoreboard:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	results, err := scoreboard.ReadResults(scoreboard.Folder)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(scoreboard.Rows, func(r scoreboard.Row) bool { return r.Name == name }) {
			return fmt.Errorf("there is no row %q; rows are R1 to R%d", name, len(scoreboard.Rows))
		}
	}
	for _, row := range scoreboard.Rows {
		_, done := results[row.Name]
		wanted := !done
		if len(names) > 0 {
			wanted = slices.Contains(names, row.Name)
		}
		if *pageOnly || !wanted || len(row.Probes) == 0 {
			continue
		}
		fmt.Fprintln(os.Stderr, time.Now().Format(time.TimeOnly), row.Name, row.Title)
		result, err := measure(row)
		if err != nil {
			return fmt.Errorf("%s: %w", row.Name, err)
		}
		if err := result.Write(scoreboard.Folder); err != nil {
			return err
		}
		results[row.Name] = result
	}
	return os.WriteFile(scoreboard.PagePath, []byte(scoreboard.Page(results)), 0o644)
}

func measure(row scoreboard.Row) (scoreboard.Result, error) {
	began := time.Now()
	r := scoreboard.Result{Row: row.Name, Date: began.UTC().Format(time.DateOnly), Version: version(), Short: *short}
	var figures *regexp.Regexp
	if row.Figures != "" {
		figures = regexp.MustCompile(row.Figures)
	}
	for _, p := range row.Probes {
		var err error
		switch p.Kind {
		case scoreboard.Go:
			err = runGo(&r, p, figures)
		case scoreboard.Story:
			err = runStory(&r, row, p, figures)
		case scoreboard.Fuzz:
			err = fuzz(&r, p)
		}
		if err != nil {
			return r, err
		}
	}
	r.Seconds = int(time.Since(began).Seconds())
	return r, nil
}

// version is the commit that was measured.
func version() string {
	out, err := exec.Command("git", "describe", "--always", "--abbrev=8", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func runGo(r *scoreboard.Result, p scoreboard.Probe, figures *regexp.Regexp) error {
	args := []string{"test", "-count=1", "-v", "-timeout=2h", "-run", p.Tests, p.Package}
	if !*short {
		args = append(args, p.Args...)
	}
	output, err := command(nil, "go", args...)
	return record(r, p, output, err, figures)
}

var errNoTest = errors.New("no test ran")

// record adds a probe's output. Failed tests are a result; a probe without any result is an error.
func record(r *scoreboard.Result, p scoreboard.Probe, output string, failure error, figures *regexp.Regexp) error {
	had := r.Passed + len(r.Failed)
	r.Add(output, figures)
	if r.Passed+len(r.Failed) == had {
		return fmt.Errorf("%s %s %s: %w", p.Kind, p.Package, p.Tests, errors.Join(errNoTest, failure))
	}
	if failure != nil && len(r.Failed) == 0 {
		r.Failed = append(r.Failed, fmt.Sprintf("%s %s", p.Package, failure))
	}
	return nil
}

func runStory(r *scoreboard.Result, row scoreboard.Row, p scoreboard.Probe, figures *regexp.Regexp) error {
	out, err := os.MkdirTemp("", "scoreboard-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	var env []string
	if !*short {
		env = row.Env
	}
	output, failure := command(env, "make", "--no-print-directory", "e2e", "LAB=fast", "V=1", "PKG="+p.Package, "RUN="+strings.ReplaceAll(p.Tests, "$", "$$"), "OUT="+out)
	if kernel := kernelOf(out); kernel != "" {
		r.Kernel = kernel
	}
	return record(r, p, output, failure, figures)
}

// kernelOf reads the kernel from the results that the lab leaves.
func kernelOf(out string) (kernel string) {
	_ = filepath.WalkDir(out, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() != "test-results.jsonl" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var first struct{ Kernel, Lab string }
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&first); err == nil {
			kernel = first.Kernel + " (" + first.Lab + ")"
		}
		return nil
	})
	return kernel
}

// fuzz runs every fuzz target below a package.
func fuzz(r *scoreboard.Result, p scoreboard.Probe) error {
	inputs := "1000000x"
	if *short {
		inputs = "3s"
	}
	targets, err := scoreboard.FuzzTargets(strings.TrimSuffix(p.Package, "/..."))
	if err != nil {
		return err
	}
	for _, t := range targets {
		output, failure := command(nil, "go", "test", "-run", "^$", "-fuzz", "^"+t.Name+"$", "-fuzztime", inputs, t.Package)
		r.AddFuzzing(strings.TrimPrefix(t.Package, "./internal/")+" "+t.Name, output, failure)
	}
	return nil
}

// command runs a command and returns what it printed. It also prints it, on standard error.
func command(env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	var output bytes.Buffer
	both := io.MultiWriter(&output, os.Stderr)
	cmd.Stdout, cmd.Stderr = both, both
	err := cmd.Run()
	return output.String(), err
}
