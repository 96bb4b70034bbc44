package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

const module = "github.com/kube-ipvs/kube-ipvs/"

// event is a line of "go test -json".
type event struct {
	Action, Package, Test, Output string
	Key, Value                    string // of an attribute
}

// recordTests runs "go test ARGS...", prints its output and appends the results to a file.
func recordTests(file string, command []string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command(command[0], slices.Insert(slices.Clone(command[1:]), 1, "-json")...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = (&reporter{screen: os.Stdout, results: json.NewEncoder(out)}).follow(pipe)
	return errors.Join(cmd.Wait(), err, out.Close())
}

// fuzzed matches the number of inputs of a fuzz target.
var fuzzed = regexp.MustCompile(`^fuzz: elapsed: \S+, execs: (\d+)`)

// reporter prints what "go test" prints without -json: a line for each package, and the output of failed tests.
type reporter struct {
	screen  io.Writer
	results *json.Encoder
	held    map[string]string   // the output of each test that is still running
	figures map[string][]string // what each test measured
}

func (r *reporter) follow(events io.Reader) error {
	r.held, r.figures = map[string]string{}, map[string][]string{}
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(r.screen, string(line)) // not from go test
			} else if err := r.see(e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *reporter) see(e event) error {
	name := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		if e.Test == "" {
			if e.Output != "PASS\n" {
				fmt.Fprint(r.screen, e.Output)
			}
			return nil
		}
		if m := fuzzed.FindStringSubmatch(e.Output); m != nil {
			r.figures[name] = []string{m[1] + " inputs"}
		}
		if !strings.HasPrefix(e.Output, "=== ") {
			r.held[name] += e.Output
		}
	case "attr":
		if e.Key == record.Figure {
			r.figures[name] = append(r.figures[name], e.Value)
		}
	case "pass", "fail", "skip":
		if e.Action == "fail" {
			fmt.Fprint(r.screen, r.held[name])
		}
		delete(r.held, name)
		if e.Test != "" {
			return r.results.Encode(record.Test{
				Package: strings.TrimPrefix(e.Package, module), Test: e.Test, Status: strings.ToUpper(e.Action), Figures: r.figures[name],
			})
		}
	}
	return nil
}
