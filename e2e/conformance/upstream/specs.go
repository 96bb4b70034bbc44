// Package upstream runs Kubernetes' own end-to-end tests in a cluster with real kubelets, and keeps what they said.
package upstream

import (
	"bufio"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// State is what became of a spec.
type State string

// The states of a spec.
const (
	Passed  State = "passed"
	Failed  State = "failed"
	Skipped State = "skipped" // by the spec itself, which says why
)

// Outcome is what became of a spec in one run.
type Outcome struct {
	Spec    string  `json:"spec"`
	State   State   `json:"state"`
	Reason  string  `json:"reason,omitempty"` // why it failed or was skipped
	Seconds float64 `json:"seconds"`

	Date       string `json:"date"`
	Kubernetes string `json:"kubernetes"`
	Kernel     string `json:"kernel"`
}

// AnnounceKernel is a shell command that prints the line from which Follow learns the kernel.
const AnnounceKernel = `echo "kernel $LAB_KERNEL in $LAB_MODE"`

var announced = regexp.MustCompile(`^kernel (\S+) in (\S+)`)

// KernelName shortens 6.1.0-56-amd64 to 6.1, because patch levels change often. It marks kernels built for user-mode Linux.
func KernelName(release, lab string) string {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return release
	}
	minor, _, _ := strings.Cut(parts[1], "-")
	name := parts[0] + "." + minor
	if strings.HasPrefix(lab, "uml") {
		name += " (UML)"
	}
	return name
}

var (
	separator = regexp.MustCompile(`^-{20,}$`)
	// verdict is the line after a spec's output; without a word in it, the spec passed.
	verdict = regexp.MustCompile(`^[•SP](?: \[([A-Z]+)[^\]]*\])? \[([0-9.]+) seconds\]`)
	// explained is the line with the reason, which follows the verdict.
	explained = regexp.MustCompile(`^\s+\[(?:SKIPPED|FAILED)\] (.*)`)
	// label is one of those that follow a spec's name in the output.
	label = regexp.MustCompile(` \[[^\]]*\]$`)
)

// Listed are the names of all matching specs in the output of "e2e.test --list-tests".
func Listed(output string, focus, skip *regexp.Regexp) (names []string) {
	for line := range strings.Lines(output) {
		_, name, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok && strings.HasPrefix(name, "[") && focus.MatchString(name) && !skip.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

// Follow reads the output of e2e.test to its end, and calls found with each outcome as soon as its reason is known. specs are the names
// of those that run.
func Follow(output io.Reader, specs []string, found func(Outcome)) error {
	known := map[string]bool{}
	for _, spec := range specs {
		known[spec] = true
	}
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20) // a line has a letter for each spec that is left out
	var (
		kernel, spec string
		first        bool // the next line names a spec
		last         *Outcome
	)
	finish := func() {
		if last != nil {
			found(*last)
			last = nil
		}
	}
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), " ")
		if match := announced.FindStringSubmatch(line); match != nil && kernel == "" {
			kernel = KernelName(match[1], match[2])
		}
		if separator.MatchString(line) {
			finish()
			spec, first = "", true
			continue
		}
		if first && line != "" {
			spec, first = specIn(line, known), false
		}
		if match := verdict.FindStringSubmatch(line); match != nil && spec != "" {
			last = outcome(spec, match)
			last.Kernel = kernel
		}
		if match := explained.FindStringSubmatch(line); match != nil && last != nil && last.Reason == "" {
			last.Reason = match[1]
		}
	}
	finish()
	return lines.Err()
}

func outcome(spec string, match []string) *Outcome {
	seconds, _ := strconv.ParseFloat(match[2], 64) // the expression lets only numbers pass
	o := Outcome{Spec: spec, State: Failed, Seconds: seconds}
	switch match[1] {
	case "":
		o.State = Passed
	case "SKIPPED":
		o.State = Skipped
	}
	return &o
}

// specIn is the name with which the line begins, or none.
func specIn(line string, known map[string]bool) string {
	for !known[line] {
		shorter := label.ReplaceAllString(line, "")
		if shorter == line {
			return ""
		}
		line = shorter
	}
	return line
}
