package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// testLog reads the output of a test binary with -test.v=test2json. It prints what "go test" would print. The testing
// package marks its own lines with ^V, so that a test's output is never mistaken for a result.
type testLog struct {
	out     io.Writer
	verbose bool

	partial []byte
	current string            // the test that writes the next line
	held    map[string][]byte // output of tests that have not ended
	results []testResult
	started map[string]int      // how often each test was started
	figures map[string][]string // what each test measured
}

type testResult struct {
	name, status string // PASS, FAIL or SKIP
	figures      []string
}

const frameMark = 0x16

var (
	resultLine    = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	attributeLine = regexp.MustCompile(`^=== ATTR +(\S+) (\S+) (.*)$`)
)

func newTestLog(out io.Writer, verbose bool) *testLog {
	return &testLog{out: out, verbose: verbose, held: map[string][]byte{}, started: map[string]int{}, figures: map[string][]string{}}
}

func (l *testLog) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		line, rest, ok := cutLine(l.partial)
		if !ok {
			return len(p), nil
		}
		l.partial = rest
		l.line(line)
	}
}

// cutLine cuts after a newline or before a mark, because a test may have printed an unfinished line.
func cutLine(data []byte) (line, rest []byte, ok bool) {
	end := bytes.IndexByte(data, '\n')
	mark := -1
	if len(data) > 1 {
		mark = bytes.IndexByte(data[1:], frameMark)
	}
	switch {
	case mark >= 0 && (end < 0 || mark < end):
		return data[:mark+1], data[mark+1:], true
	case end >= 0:
		return data[:end+1], data[end+1:], true
	default:
		return nil, data, false
	}
}

func (l *testLog) line(line []byte) {
	framed := len(line) > 0 && line[0] == frameMark
	if framed {
		line = line[1:]
	}
	// A NAME line only names the test that prints the following output.
	if l.verbose && !(framed && bytes.HasPrefix(line, []byte("=== NAME"))) {
		_, _ = l.out.Write(line)
	}
	if !framed {
		l.hold(line)
		return
	}
	text := strings.TrimSuffix(string(line), "\n")
	if m := resultLine.FindStringSubmatch(text); m != nil {
		l.result(testResult{m[2], m[1], l.figures[m[2]]}, line)
		return
	}
	if m := attributeLine.FindStringSubmatch(text); m != nil {
		if m[2] == record.Figure {
			l.figures[m[1]] = append(l.figures[m[1]], m[3])
		}
		return
	}
	verb, name, ok := strings.Cut(strings.TrimPrefix(text, "=== "), " ")
	if !ok {
		return
	}
	l.current = strings.TrimSpace(name)
	if verb == "RUN" {
		l.started[l.current]++
	}
}

func (l *testLog) hold(line []byte) {
	if text := string(line); text == "PASS\n" || text == "FAIL\n" || l.verbose {
		return
	}
	l.held[l.current] = append(l.held[l.current], line...)
}

func (l *testLog) result(r testResult, line []byte) {
	l.results = append(l.results, r)
	if r.status != "PASS" && !l.verbose {
		_, _ = l.out.Write(append(bytes.Clone(line), l.held[r.name]...))
	}
	delete(l.held, r.name)
	l.current = ""
}

// finish prints the remaining output of a failed package, such as a panic or the output of TestMain.
func (l *testLog) finish(failed bool) {
	if len(l.partial) > 0 {
		l.line(append(l.partial, '\n'))
		l.partial = nil
	}
	if !failed || l.verbose {
		return
	}
	for name, text := range l.held {
		if name != "" {
			fmt.Fprintf(l.out, "--- %s did not end\n", name)
		}
		_, _ = l.out.Write(text)
	}
}
