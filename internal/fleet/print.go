package fleet

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

// Limits of the output without -o wide.
const (
	fewNames    = 5
	fewEvidence = 5
	fewNotices  = 20
)

// Print writes the report as a table, followed by the findings and notices.
func Print(w io.Writer, r Report, form inspect.Table) error {
	return print(w, r, nil, r.Notices(form.Wide), form)
}

// print writes a report. events is nil or contains an event for each row.
func print(w io.Writer, r Report, events, notices []string, form inspect.Table) error {
	text := &strings.Builder{}
	p := printer{text, r, form.Wide}
	if err := p.rows(events, form); err != nil {
		return err
	}
	for _, f := range r.Findings {
		p.finding(f)
	}
	for _, u := range r.Unchecked {
		p.line("not checked: %s (%s)", u.What, p.nodes(u.Nodes, ", "))
	}
	for _, n := range notices {
		p.line("%s", n)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// Columns returns the headings of the table of a command.
func Columns(name string) []string {
	c := commands[name]
	return slices.Concat(c.subject, c.says, c.sums, []string{"NODES"})
}

func (p printer) rows(events []string, form inspect.Table) error {
	titles := Columns(p.report.Command)
	if events != nil {
		titles = append([]string{"EVENT"}, titles...)
	}
	var table [][]string
	for i, row := range p.report.Rows {
		cells := slices.Concat(row.Subject, row.Says)
		cells = append(cells, p.sums(row)...)
		cells = append(cells, p.nodes(row.Nodes, ","))
		if events != nil {
			cells = append([]string{events[i]}, cells...)
		}
		for i, c := range cells {
			cells[i] = finding.Printable(c)
		}
		table = append(table, cells)
	}
	return inspect.WriteTable(p.w, titles, table, form)
}

func (p printer) sums(row Row) (cells []string) {
	for i := range commands[p.report.Command].sums {
		cell := "-"
		if i < len(row.Sums) {
			cell = strconv.FormatUint(row.Sums[i], 10)
		}
		cells = append(cells, cell)
	}
	return cells
}

// PrintNames writes names that other commands accept. For commands that examine nodes, these are the nodes that are
// not well or did not respond. For other commands, they are Services or frontends.
func PrintNames(w io.Writer, r Report) error {
	var names []string
	c := commands[r.Command]
	for _, row := range r.Rows {
		names = append(names, c.names(row)...)
	}
	if c.verdict {
		for _, s := range r.Silent {
			names = append(names, s.Node)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name == "" {
			continue
		}
		if _, err := fmt.Fprintln(w, finding.Printable(name)); err != nil {
			return err
		}
	}
	return nil
}

// Notices returns lines about problems, the number of nodes that responded, and the verdict, if any. The number of
// lines is limited unless wide is true.
func (r *Report) Notices(wide bool) []string {
	var notices []string
	for _, d := range r.Disagreements {
		notices = append(notices, "! nodes disagree about "+d)
	}
	silent := map[string][]string{}
	for _, s := range r.Silent {
		silent[s.Error] = append(silent[s.Error], s.Node)
	}
	p := printer{wide: wide}
	for _, s := range r.Silent {
		if nodes := silent[s.Error]; nodes[0] == s.Node {
			notices = append(notices, fmt.Sprintf("! %s: %s", p.nodes(nodes, ", "), s.Error))
		}
	}
	if more := len(notices) - fewNotices; more > 0 && !wide {
		notices = append(notices[:fewNotices], fmt.Sprintf("! %d more lines like these; -o wide shows all", more))
	}
	if r.LeftOut > 0 {
		notices = append(notices, fmt.Sprintf("! the answer is too large; %d parts are omitted; name one Service or fewer nodes", r.LeftOut))
	}
	switch {
	case r.Stopped != "":
		notices = append(notices, fmt.Sprintf("! this answer is partial: %s; %d nodes were not queried", r.Stopped, r.NotAsked))
	case r.NotAsked > 0:
		notices = append(notices, fmt.Sprintf("! %d more nodes were not queried; use --all-nodes", r.NotAsked))
	}
	if skipped := SkippedText(r.Skipped); skipped != "" {
		notices = append(notices, skipped)
	}
	notices = append(notices, fmt.Sprintf("%d of %d nodes responded", r.responded(), len(r.Nodes)+r.NotAsked))
	if verdict := r.readiness(); verdict != "" {
		notices = append(notices, verdict)
	}
	for i, n := range notices {
		notices[i] = finding.Printable(n)
	}
	return notices
}

func (r *Report) responded() int { return len(r.Nodes) - len(r.Silent) }

type printer struct {
	w      io.Writer
	report Report
	wide   bool
}

func (p printer) line(format string, args ...any) {
	fmt.Fprintln(p.w, finding.Printable(fmt.Sprintf(format, args...)))
}

// finding formats a finding as doctor does, and adds the nodes. If the evidence differs between nodes, each piece of
// evidence shows its nodes.
func (p printer) finding(f Finding) {
	p.line("%-7s  %s: %s", f.Severity, f.Subject, f.Problem)
	p.line("         on %s", p.nodes(f.Nodes, ", "))
	for i, e := range f.Evidence {
		if more := len(f.Evidence) - i; i == fewEvidence && !p.wide {
			p.line("         | and %d more; -o wide shows all", more)
			break
		}
		before := ""
		if len(f.Evidence) > 1 {
			before = p.nodes(e.Nodes, ", ") + ": "
		}
		observed := strings.Split(strings.Join(e.Observed, "\n"), "\n")
		if e.Problem != f.Problem {
			observed = append([]string{e.Problem}, slices.DeleteFunc(observed, isEmpty)...)
		}
		for _, line := range observed {
			if line != "" || len(f.Evidence) > 1 {
				p.line("         | %s%s", before, line)
				before = strings.Repeat(" ", min(len(before), 2))
			}
		}
	}
	p.line("         remedy: %s", f.Remedy)
}

func isEmpty(s string) bool { return s == "" }

func (p printer) nodes(names []string, separator string) string {
	switch all := p.report.responded(); {
	case len(names) == all && all > 1:
		return fmt.Sprintf("all %d", all)
	case p.wide:
		return strings.Join(names, separator)
	}
	return some(names, separator)
}

func some(names []string, separator string) string {
	if more := len(names) - fewNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:fewNames], separator), more)
	}
	return strings.Join(names, separator)
}
