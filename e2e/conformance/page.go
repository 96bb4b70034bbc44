package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// PagePath is where the page is, from the root of the repository.
const PagePath = "docs/conformance.md"

// State is how things stand with a row.
type State string

const (
	Open    State = "**open**"    // nobody claims it
	Untried State = "not run yet" // claimed, without a result
	Proven  State = "proven"
	Failing State = "**fails**"
	Excused State = "excused"
)

// StateOf says how things stand with a row.
func StateOf(row Row, claims Claims, results []Result) State {
	switch {
	case row.Excuse != "":
		return Excused
	case len(claims[row.Number]) == 0 && len(row.Elsewhere) > 0:
		return Proven
	case len(claims[row.Number]) == 0:
		return Open
	}
	state := Proven
	for _, test := range claims[row.Number] {
		of := func(r Result) bool { return r.Row == row.Number && r.Test == test }
		switch {
		case slices.ContainsFunc(results, func(r Result) bool { return of(r) && !r.Passed }):
			return Failing
		case !slices.ContainsFunc(results, of):
			state = Untried
		}
	}
	return state
}

// Page renders docs/conformance.md.
func Page(claims Claims, found Record) string {
	var b strings.Builder
	b.WriteString(`# Conformance

What a Service proxy owes a cluster, and the test that shows it on a real kernel, with real packets and a real API server. Rows
1 to 142 are what Kubernetes' own end-to-end tests exercise, 143 to 153 what they miss. Tests are in [e2e](../e2e); the column
"kernels" says where each passed. [Below](#beside-kube-proxy) is what kube-proxy does where it is known to be wrong.

The two seconds of row 151 are those of a guest that is [some times slower than a server](lab.md#a-clock-that-counts-instructions),
from the start of the program, less what the API server and etcd work meanwhile on the guest's one CPU. Files are in the page cache
and the kernel has the module ip_vs.

`)
	b.WriteString(summary(claims, found.Results))
	b.WriteString(`
This page is generated: ` + "`make conformance`" + ` runs the tests and writes it anew.

| row | behaviour | state | tests | kernels |
|---|---|---|---|---|
`)
	for _, row := range Rows {
		tests, kernels := proofs(row, claims, found.Results)
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s |\n", row.Number, row.Title, StateOf(row, claims, found.Results), tests, kernels)
	}
	return b.String() + contrastTable(found.Seen)
}

func summary(claims Claims, results []Result) string {
	counts := map[State]int{}
	for _, row := range Rows {
		counts[StateOf(row, claims, results)]++
	}
	var parts []string
	for _, s := range []State{Proven, Excused, Open, Failing, Untried} {
		if counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[s], strings.Trim(string(s), "*")))
		}
	}
	return fmt.Sprintf("Of %d rows: %s.\n", len(Rows), strings.Join(parts, ", "))
}

// proofs are the last two columns of a row.
func proofs(row Row, claims Claims, results []Result) (tests, kernels string) {
	if row.Excuse != "" {
		return row.Excuse, ""
	}
	var names, passedOn []string
	for _, name := range slices.Concat(claims[row.Number], row.Elsewhere) {
		names = append(names, "`"+name+"`")
	}
	for _, r := range results {
		if r.Row == row.Number && r.Passed && !slices.Contains(passedOn, r.Kernel) {
			passedOn = append(passedOn, r.Kernel)
		}
	}
	slices.Sort(passedOn)
	return strings.Join(names, "<br>"), strings.Join(passedOn, ", ")
}
