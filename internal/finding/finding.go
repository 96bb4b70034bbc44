// Package finding defines the findings of preflight, status and doctor.
//
// May import: nothing of this module.
package finding

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Severity is the severity of a finding.
type Severity string

// The severities. A broken finding prevents the agent from serving the current Services. A notice requires no action.
const (
	Broken  Severity = "broken"
	Warning Severity = "warning"
	Notice  Severity = "notice"
)

var order = map[Severity]int{Broken: 0, Warning: 1, Notice: 2}

// Finding is one problem or notice.
type Finding struct {
	Severity Severity `json:"severity"`
	// Subject is the affected part: the agent, a port, a sysctl, a module.
	Subject string `json:"subject"`
	Problem string `json:"problem"`
	// Evidence is the observed state, as a tool or file shows it. It is never nil.
	Evidence []string `json:"evidence"`
	// Remedy tells the operator what to do. Complete commands are in backquotes after the word "run".
	Remedy string `json:"remedy"`
}

var command = regexp.MustCompile("run `([^`]+)`")

// Commands returns the commands in the remedy that solve the problem.
func (f Finding) Commands() (commands []string) {
	for _, m := range command.FindAllStringSubmatch(f.Remedy, -1) {
		commands = append(commands, m[1])
	}
	return commands
}

// New returns a finding.
func New(severity Severity, subject, problem string, evidence []string, remedy string) Finding {
	return Finding{severity, subject, problem, append([]string{}, evidence...), remedy}
}

// One returns a list with a single finding.
func One(severity Severity, subject, problem string, evidence []string, remedy string) []Finding {
	return []Finding{New(severity, subject, problem, evidence, remedy)}
}

// Summary returns the finding as one line, without the remedy.
func (f Finding) Summary() string {
	text := f.Subject + ": " + f.Problem
	if len(f.Evidence) > 0 {
		text += ": " + strings.ReplaceAll(strings.Join(f.Evidence, "; "), "\n", "; ")
	}
	return text
}

// String returns the finding as one line for the log.
func (f Finding) String() string { return f.Summary() + "; " + f.Remedy }

// Details returns the lines to print below the subject and problem.
func (f Finding) Details() []string {
	var lines []string
	for _, e := range f.Evidence {
		for line := range strings.SplitSeq(e, "\n") {
			lines = append(lines, "| "+line)
		}
	}
	return append(lines, "remedy: "+f.Remedy)
}

// Printable replaces control characters. Otherwise, a foreign name or answer could send escape sequences to the terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, text)
}

// plain matches words that a shell does not change.
var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Word quotes a name for use in a shell command. Other programs may have chosen any name.
func Word(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// Sort puts the most serious findings first.
func Sort(found []Finding) {
	slices.SortStableFunc(found, func(a, b Finding) int { return Compare(a.Severity, b.Severity) })
}

// Compare orders severities from most to least serious.
func Compare(a, b Severity) int { return cmp.Compare(order[a], order[b]) }

// Well is the verdict if no finding is worse than a notice.
const Well = "well"

// Verdict returns the highest severity above notice, or Well.
func Verdict(found []Finding) string {
	for _, severity := range []Severity{Broken, Warning} {
		if slices.ContainsFunc(found, func(f Finding) bool { return f.Severity == severity }) {
			return string(severity)
		}
	}
	return Well
}

// Print writes findings as text.
func Print(w io.Writer, found []Finding) error {
	var text strings.Builder
	for _, f := range found {
		fmt.Fprintf(&text, "%-7s  %s\n", f.Severity, Printable(f.Subject+": "+f.Problem))
		for _, line := range f.Details() {
			fmt.Fprintf(&text, "         %s\n", Printable(line))
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}
