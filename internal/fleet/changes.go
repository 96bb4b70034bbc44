package fleet

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

// Row events, named as in kubectl.
const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
)

// EventWidth is the width of the event column.
const EventWidth = len(modified)

// Changes are the differences between two reports.
type Changes struct {
	// report is the later report, reduced to rows, findings and unchecked parts that are new or whose nodes changed.
	// Deleted rows come last. events contains the event of each row.
	report  Report
	events  []string
	notices []string
}

// Compare returns the differences between two reports, or the whole second report if the first is empty. It ignores
// sums, which change all the time. Nodes without an answer in one of the reports appear only in notices.
func Compare(before, after Report) Changes {
	c := Changes{report: after, events: []string{}}
	c.report.Rows, c.report.Findings, c.report.Unchecked = nil, nil, nil
	both := respondedBoth(before, after)
	c.compareRows(before, after, both)
	found := map[string]Finding{}
	for _, f := range before.Findings {
		found[f.id()] = f
	}
	for _, f := range after.Findings {
		if old, known := found[f.id()]; !known || !slices.Equal(both.of(old.Nodes), both.of(f.Nodes)) {
			c.report.Findings = append(c.report.Findings, f)
		}
		delete(found, f.id())
	}
	for _, f := range before.Findings {
		if _, gone := found[f.id()]; gone && len(both.of(f.Nodes)) > 0 {
			c.notices = append(c.notices, fmt.Sprintf("no longer: %s %s: %s", f.Severity, f.Subject, f.Problem))
		}
	}
	for _, u := range after.Unchecked {
		if !slices.ContainsFunc(before.Unchecked, func(old Unchecked) bool { return old.What == u.What }) {
			c.report.Unchecked = append(c.report.Unchecked, u)
		}
	}
	c.compareNotices(before, after)
	return c
}

func (c *Changes) compareRows(before, after Report, both nodeNames) {
	old, now := nodesOfRows(before, both), nodesOfRows(after, both)
	event := func(name string, r Row) {
		c.report.Rows, c.events = append(c.report.Rows, r), append(c.events, name)
	}
	for _, r := range after.Rows {
		nodes, known := old[r.id(after.Command)]
		switch {
		case !known:
			event(added, r)
		case !slices.Equal(nodes, now[r.id(after.Command)]):
			event(modified, r)
		}
	}
	for _, r := range before.Rows {
		if _, stays := now[r.id(after.Command)]; !stays && len(both.of(r.Nodes)) > 0 {
			event(deleted, r)
		}
	}
}

func (c *Changes) compareNotices(before, after Report) {
	var old []string
	if len(before.Nodes) > 0 {
		old = before.Notices(false)
	}
	now := after.Notices(false)
	for _, n := range old {
		if problem, is := strings.CutPrefix(n, "! "); is && !slices.Contains(now, n) {
			c.notices = append(c.notices, "no longer: "+problem)
		}
	}
	for _, n := range now {
		if !slices.Contains(old, n) {
			c.notices = append(c.notices, n)
		}
	}
}

// Empty reports whether nothing differs.
func (c *Changes) Empty() bool {
	return len(c.events) == 0 && len(c.report.Findings) == 0 && len(c.report.Unchecked) == 0 && len(c.notices) == 0
}

// Print writes the changes as a table with an additional column for the event.
func (c *Changes) Print(w io.Writer, form inspect.Table) error {
	return print(w, c.report, c.events, c.notices, form)
}

// Names returns a report with the new and changed rows, for PrintNames.
func (c *Changes) Names() Report {
	r := c.report
	r.Rows = slices.Clone(r.Rows)
	for i := range r.Rows {
		if c.events[i] == deleted {
			r.Rows = r.Rows[:i] // deleted rows are last
			break
		}
	}
	return r
}

func (r Row) id(command string) string {
	says := r.Says
	if commands[command].changing {
		says = says[:len(says)-1]
	}
	return key(r.Subject) + "\x01" + key(says)
}

func nodesOfRows(r Report, both nodeNames) map[string][]string {
	nodes := map[string][]string{}
	for _, row := range r.Rows {
		id := row.id(r.Command)
		nodes[id] = append(nodes[id], both.of(row.Nodes)...)
	}
	for _, list := range nodes {
		slices.Sort(list)
	}
	return nodes
}

type nodeNames map[string]bool

func (n nodeNames) of(names []string) (some []string) {
	for _, name := range names {
		if n[name] {
			some = append(some, name)
		}
	}
	return some
}

func respondedBoth(before, after Report) nodeNames {
	first, both := map[string]bool{}, nodeNames{}
	for _, a := range before.Nodes {
		first[a.Node] = a.Error == ""
	}
	for _, a := range after.Nodes {
		if a.Error == "" && first[a.Node] {
			both[a.Node] = true
		}
	}
	return both
}
