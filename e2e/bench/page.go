package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// PagePath, SummaryPath and PicturesPath are relative to the root of the repository.
const (
	PagePath     = "docs/performance.md"
	SummaryPath  = "README.md"
	PicturesPath = "docs/images"
)

// changedMark marks results of a program that has changed since.
const changedMark = ", changed since"

// measured is a result and where it was measured.
type measured struct {
	Result
	where string
}

// Shows reports whether the page uses a result.
func Shows(t record.Test) bool { return t.Package == "e2e/bench" && len(t.Figures) > 0 }

// Now is what a measurement would measure today.
type Now struct {
	Source   string            // see record.Test
	Versions map[string]string // of other projects, by the first word of a program's name
}

// changed reports whether a measurement today would measure another program. The kernel alone does not count as a program.
func (n Now) changed(t record.Test, r Result) bool {
	project, _, _ := strings.Cut(r.Program, " ")
	if project == "kube-ipvs" {
		return t.Source != n.Source
	}
	return r.Version != n.Versions[project]
}

// read returns this package's results, sorted by size, with kube-ipvs first.
func read(tests []record.Test, now Now) (all []measured, err error) {
	for _, t := range tests {
		if !Shows(t) {
			continue
		}
		m := measured{where: t.Where()}
		if err := json.Unmarshal([]byte(t.Figures[0]), &m.Result); err != nil {
			return nil, fmt.Errorf("the figures of %s: %w", t.Name(), err)
		}
		if now.changed(t, m.Result) {
			m.where += changedMark
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b measured) int {
		return cmp.Or(a.Services-b.Services, cmp.Compare(slices.Index(programs, a.Program), slices.Index(programs, b.Program)))
	})
	return all, nil
}

// The cases without a program. The second is the least that a program needs to masquerade connections.
const aloneProgram, trackedProgram = "IPVS alone", "IPVS with conntrack"

// programs lists the compared programs in the order of rows and legends. "kube-ipvs nftables" and "kube-ipvs routes" are kube-ipvs
// with the data plane nftables, and with routes in place of addresses.
var programs = []string{
	"kube-ipvs", "kube-ipvs nftables", "kube-ipvs routes", aloneProgram, trackedProgram,
	"kube-proxy iptables", "kube-proxy ipvs", "kube-proxy nftables", "kube-router",
}

// table is a generated table.
type table struct {
	page    string
	columns []string
	// rows returns the rows of a result. It returns none if the result has no data for the table.
	rows func(r Result, least floors) [][]string
}

func row(cells ...string) [][]string { return [][]string{cells} }

var tables = map[string]table{
	"changes": {
		PagePath, []string{"p50, ms", "p99, ms", "max, ms", "CPU per change, ms", "changes"},
		func(r Result, _ floors) [][]string {
			if c := r.Changes; c != nil {
				return row(number(c.Median), number(c.P99), number(c.Worst), number(c.CPU), fmt.Sprint(c.Count))
			}
			return nil
		},
	},
	"start": {
		PagePath, []string{"half, s", "all, s", "CPU, s"},
		func(r Result, _ floors) [][]string {
			if s := r.Start; s != nil {
				cpu := number(s.CPU)
				if s.All == 0 {
					cpu = "more than " + cpu // a process that still runs does not count
				}
				return row(reached(s.Half, s), reached(s.All, s), cpu)
			}
			return nil
		},
	},
	"resources": {
		PagePath, []string{"memory after the start, MB", "memory once idle, MB", "pages of files, MB", "idle CPU, %"},
		func(r Result, _ floors) [][]string {
			if r.Memory == nil || r.Idle == nil {
				return nil
			}
			return row(number(r.Memory.Started), number(r.Memory.Idle), number(r.Memory.Files), number(r.Idle.CPU))
		},
	},
	"rollouts": {
		PagePath, []string{"250 endpoints, CPU s", "1,000 endpoints, CPU s"},
		func(r Result, _ floors) [][]string {
			if len(r.Rollouts) != 2 {
				return nil
			}
			return row(number(r.Rollouts[0].CPU), number(r.Rollouts[1].CPU))
		},
	},
	"storms": {
		PagePath, []string{"storm", "updates", "until the program is idle, s", "CPU, s"},
		func(r Result, _ floors) (rows [][]string) {
			for _, s := range r.Storms {
				rows = append(rows, []string{s.Name, fmt.Sprint(s.Updates), number(s.Took), number(s.CPU)})
			}
			return rows
		},
	},
	"packets": {
		PagePath, []string{"first packet of a flow, µs", "later packet, never answered, µs", "later packet, answered, µs"},
		func(r Result, least floors) [][]string {
			if p := r.Packets; p != nil {
				return row(
					packet(p.First, least.alone.First, least.tracked.First),
					packet(p.Later, least.alone.Later, least.tracked.Later),
					packet(p.Answered, least.alone.Answered, least.tracked.Answered))
			}
			return nil
		},
	},
	"summary": {
		SummaryPath, []string{"a new endpoint is reached after (median), ms", "CPU per change, ms", "all Services work after a start, s", "memory once idle, MB", "idle CPU, %"},
		func(r Result, _ floors) [][]string {
			if r.Services != 1000 || r.Changes == nil || r.Start == nil || r.Memory == nil || r.Idle == nil {
				return nil
			}
			return row(number(r.Changes.Median), number(r.Changes.CPU), reached(r.Start.All, r.Start), number(r.Memory.Idle), number(r.Idle.CPU))
		},
	},
}

// packet formats the cost of a packet in microseconds, and what fraction of it each floor is. Older results lack some costs.
func packet(cost Cost, least ...Cost) string {
	if cost == 0 {
		return "not measured"
	}
	var fractions []string
	for _, floor := range least {
		fraction := "–"
		if floor != 0 {
			fraction = fmt.Sprintf("%.2f", float64(floor/cost))
		}
		fractions = append(fractions, fraction)
	}
	return fmt.Sprintf("%s (%s)", number(cost/1000), strings.Join(fractions, ", "))
}

// floors are the costs of packets without a program.
type floors struct{ alone, tracked Packets }

func floorsOf(all []measured) (f floors) {
	for _, r := range all {
		switch {
		case r.Packets == nil:
		case r.Program == aloneProgram:
			f.alone = *r.Packets
		case r.Program == trackedProgram:
			f.tracked = *r.Packets
		}
	}
	return f
}

// Page updates the tables and pictures of the page at path. It returns the new page, and its pictures by name.
func Page(path, page string, tests []record.Test, now Now) (text string, drawn map[string]string, err error) {
	all, err := read(tests, now)
	if err != nil {
		return "", nil, err
	}
	contents := map[string]string{}
	for name, t := range tables {
		if t.page == path {
			contents["table "+name] = t.text(all)
		}
	}
	drawn = map[string]string{}
	images := strings.TrimPrefix(PicturesPath, filepath.Dir(path)+"/")
	for name, c := range charts {
		if path != PagePath && name != summaryChart {
			continue
		}
		contents["picture "+name] = ""
		if c.shows(all) {
			drawn[name] = c.draw(all)
			contents["picture "+name] = fmt.Sprintf("![%s](%s/%s)\n", c.title, images, name)
		}
	}
	text, err = record.Fill(path, page, contents)
	return text, drawn, err
}

func (t table) text(all []measured) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| Services |  | %s | measured |\n|%s\n", strings.Join(t.columns, " | "), strings.Repeat("---|", len(t.columns)+3))
	least := floorsOf(all)
	for _, r := range all {
		for _, cells := range t.rows(r.Result, least) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", thousands(r.Services), r.Program, strings.Join(cells, " | "), r.where)
		}
	}
	return b.String()
}

// reached formats a time. A zero time means that the limit was exceeded.
func reached(s Seconds, start *Start) string {
	switch {
	case s != 0:
		return number(s)
	case start.Probed > 0:
		return fmt.Sprintf("not within %.0f: %d of %d", float64(start.Limit), start.Usable, start.Probed)
	}
	return fmt.Sprintf("not within %.0f", float64(start.Limit))
}

// number formats a value with three significant digits.
func number[T ~float64](v T) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", float64(v))
	case v >= 10:
		return fmt.Sprintf("%.1f", float64(v))
	}
	return fmt.Sprintf("%.2f", float64(v))
}

func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
