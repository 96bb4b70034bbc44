package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/bench"
)

const pageName = "performance.md"

// table is a generated part of the page between <!-- table NAME --> and <!-- end -->, as pictures are.
type table struct {
	columns []string
	// row returns the cells of a result, or none if the result has no data for the table. The floor is the cost of packets with
	// IPVS alone.
	row func(r bench.Result, floor bench.Packets) []string
}

var tables = map[string]table{
	"changes": {
		[]string{"Services", "", "p50, ms", "p99, ms", "max, ms", "CPU per change, ms", "changes"},
		func(r bench.Result, _ bench.Packets) []string {
			if c := r.Changes; c != nil {
				return []string{number(c.Median), number(c.P99), number(c.Worst), number(c.CPU), fmt.Sprint(c.Count)}
			}
			return nil
		},
	},
	"start": {
		[]string{"Services", "", "API server, s", "DNS, s", "half, s", "all, s", "CPU, s"},
		func(r bench.Result, _ bench.Packets) []string {
			if s := r.Start; s != nil {
				return []string{reached(s.API, s), reached(s.DNS, s), reached(s.Half, s), reached(s.All, s), number(s.CPU)}
			}
			return nil
		},
	},
	"resources": {
		[]string{"Services", "", "memory after the start, MB", "memory once idle, MB", "idle CPU, %", "rolling update, CPU s"},
		func(r bench.Result, _ bench.Packets) []string {
			if r.Memory == nil || r.Idle == nil || r.Rollout == nil {
				return nil
			}
			return []string{number(r.Memory.Started), number(r.Memory.Idle), number(r.Idle.CPU), number(r.Rollout.CPU)}
		},
	},
	"packets": {
		[]string{"Services", "", "first packet of a flow, µs", "later packet, never answered, µs"},
		func(r bench.Result, floor bench.Packets) []string {
			if p := r.Packets; p != nil {
				return []string{packet(p.First, floor.First), packet(p.Later, floor.Later)}
			}
			return nil
		},
	},
}

// packet returns the cost of a packet in microseconds and its ratio to IPVS alone.
func packet(cost, floor bench.Cost) string {
	return fmt.Sprintf("%s (%.2f)", number(cost/1000), float64(floor/cost))
}

// floor returns the cost of packets with IPVS alone.
func floor(all []bench.Result) bench.Packets {
	for _, r := range all {
		if r.Program == "IPVS alone" && r.Packets != nil {
			return *r.Packets
		}
	}
	return bench.Packets{}
}

// marked matches the generated parts of the page.
var marked = regexp.MustCompile(`(?s)(<!-- (table|picture) ([\w.-]+) -->\n).*?(<!-- end -->)`)

// fill replaces the tables and pictures of the page.
func fill(page string, all []bench.Result) ([]byte, error) {
	missing := map[string]bool{}
	for name := range tables {
		missing[name] = true
	}
	for name := range plots {
		missing[name] = true
	}
	filled := marked.ReplaceAllStringFunc(page, func(part string) string {
		m := marked.FindStringSubmatch(part)
		delete(missing, m[3])
		if m[2] == "table" {
			return m[1] + tables[m[3]].text(all) + m[4]
		}
		if p := plots[m[3]]; p.shows(all) {
			return m[1] + fmt.Sprintf("![%s](images/%s)\n", p.title, m[3]) + m[4]
		}
		return m[1] + m[4]
	})
	for name := range missing {
		return nil, fmt.Errorf("%s has no section for %s", pageName, name)
	}
	return []byte(filled), nil
}

func (t table) text(all []bench.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(t.columns, " | "), strings.Repeat("---|", len(t.columns)))
	for _, r := range all {
		if cells := t.row(r, floor(all)); cells != nil {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", thousands(r.Services), r.Program, strings.Join(cells, " | "))
		}
	}
	return b.String()
}

// reached returns when a state was reached, or that it was not.
func reached(s bench.Seconds, start *bench.Start) string {
	if s == 0 {
		return fmt.Sprintf("not within %.0f", float64(start.Limit))
	}
	return number(s)
}

// number formats three digits, or all digits before the point.
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
