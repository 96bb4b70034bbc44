package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance/upstream"
)

// PagePath is the path of the page, relative to the root of the repository.
const PagePath = "docs/conformance.md"

// State is the verdict on a row.
type State string

// The verdicts.
const (
	Open    State = "**open**"    // no test claims the row
	Untried State = "not run yet" // claimed, but without a result
	Proven  State = "proven"
	Failing State = "**fails**"
	Excused State = "excused"
)

// StateOf returns the verdict on a row.
func StateOf(row Row, claims Claims, results []Result) State {
	switch {
	case row.Excuse != "":
		return Excused
	case len(claims[row.Number]) == 0 && len(row.UnitTests) > 0:
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

This page lists what a Service proxy must do, and the test that proves each behavior with real
packets, a real kernel and a real API server. Rows 1 to 142 are the behaviors that Kubernetes' own
end-to-end tests exercise; rows 143 to 153 are behaviors they miss. The tests are in
[e2e](../e2e). The column "kernels" names the kernels on which they passed, and the last column
Kubernetes' own tests that passed in a cluster with kubelets. The [second table](#beside-kube-proxy)
compares with kube-proxy where it is known to be wrong; the [third](#kubernetes-own-tests) lists all
of Kubernetes' own tests that ran.

Row 151 is measured in a guest that is
[several times slower than a server](lab.md#a-clock-that-counts-instructions). Its two seconds start
with the program and leave out the CPU time that the API server and etcd use on the guest's only
CPU. The files are in the page cache, and the kernel has the module ip_vs.

`)
	b.WriteString(summary(claims, found.Results))
	b.WriteString(`
This page is generated: ` + "`make conformance`" + ` runs the tests and rewrites it.

| row | behavior | state | tests | kernels | Kubernetes' spec |
|---|---|---|---|---|---|
`)
	for _, row := range Rows {
		tests, kernels := proofs(row, claims, found.Results)
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s |\n", row.Number, row.Title, StateOf(row, claims, found.Results), tests, kernels,
			strings.Join(passedSpecs(row.Number, found.Specs), "<br>"))
	}
	return b.String() + contrastTable(found.Seen) + upstream.Section(found.Specs)
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
	for _, name := range slices.Concat(claims[row.Number], row.UnitTests) {
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
