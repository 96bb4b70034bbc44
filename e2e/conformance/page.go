package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance/upstream"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// PagePath is relative to the root of the repository.
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

// Shows reports whether the page uses a result.
func (c Claims) Shows(t record.Test) bool {
	if t.Package == upstream.Package || contrastOf(t) != nil {
		return true
	}
	for _, tests := range c {
		if slices.Contains(tests, t.Test) && strings.HasPrefix(t.Package, "e2e/") {
			return true
		}
	}
	return false
}

// StateOf returns the verdict on a row.
func StateOf(row Row, claims Claims, results []record.Test) State {
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
		of := func(t record.Test) bool { return t.Test == test }
		switch {
		case slices.ContainsFunc(results, func(t record.Test) bool { return of(t) && t.Status != "PASS" }):
			return Failing
		case !slices.ContainsFunc(results, of):
			state = Untried
		}
	}
	return state
}

// Page renders docs/conformance.md.
func Page(claims Claims, results []record.Test) string {
	var b strings.Builder
	b.WriteString(`# Conformance

This page lists what a Service proxy must do, and the test that proves each behavior with real
packets, a real kernel and a real API server. Rows 1 to 142 are the behaviors that Kubernetes' own
end-to-end tests exercise; rows 143 to 153 are behaviors that those tests do not cover. The tests
are in [e2e](../e2e). The column "passed on" lists the kernels, each with commit and date. The
column after it lists where all of a row's tests passed with [nftables instead of
IPVS](data-planes.md), and the last column lists Kubernetes' own tests that passed in a cluster with
kubelets. A row without an nftables entry has not been tested with nftables: its tests need features
that only IPVS provides, or are not in [e2e/stories/services](../e2e/stories/services). The [second
table](#beside-kube-proxy) compares kube-ipvs with kube-proxy where kube-proxy is known to be wrong;
the [third](#kubernetes-own-tests) lists all of Kubernetes' own tests that ran.

Row 151 is measured in a guest that is [several times slower than a
server](lab.md#a-clock-that-counts-instructions). Its two seconds begin when the program starts, and
exclude the CPU time that the API server and etcd use on the guest's only CPU. The program's files
are in the page cache, and the module ip_vs is loaded.

`)
	b.WriteString(summary(claims, results))
	b.WriteString(`
This page is generated from the [record](lab.md#long-tests): ` + "`make nightly`" + ` runs the tests, and
` + "`make nightly-record`" + ` rewrites it.

| row | behavior | state | tests | passed on | with nftables | Kubernetes' spec |
|---|---|---|---|---|---|---|
`)
	for _, row := range Rows {
		tests, kernels, without := proofs(row, claims, results)
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s | %s |\n", row.Number, row.Title, StateOf(row, claims, results), tests, kernels, without,
			strings.Join(row.passedSpecs(results), "<br>"))
	}
	return b.String() + contrastTable(results) + upstream.Section(results)
}

func summary(claims Claims, results []record.Test) string {
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

// proofs lists the tests that prove a row, the kernels on which at least one passed with IPVS, and those on which all
// passed with nftables.
func proofs(row Row, claims Claims, results []record.Test) (tests, kernels, without string) {
	if row.Excuse != "" {
		return row.Excuse, "", ""
	}
	var names []string
	oldest := map[string]record.Test{} // the oldest among the newest results of each test, by kernel
	passed := map[string]int{}         // number of tests by kernel
	for _, name := range slices.Concat(claims[row.Number], row.UnitTests) {
		names = append(names, "`"+name+"`")
	}
	for _, name := range claims[row.Number] {
		newest := map[string]record.Test{} // by kernel
		for _, r := range results {
			if kernel := record.KernelName(r.Kernel, r.Lab); r.Test == name && r.Status == "PASS" && r.Date >= newest[kernel].Date {
				newest[kernel] = r
			}
		}
		for kernel, r := range newest {
			passed[kernel]++
			if o, ok := oldest[kernel]; !ok || r.Date < o.Date {
				oldest[kernel] = r
			}
		}
	}
	var withIPVS, withNFTables []string
	for _, kernel := range slices.Sorted(maps.Keys(oldest)) {
		switch r := oldest[kernel]; {
		case strings.HasSuffix(r.Lab, record.InUserspace): // docs/data-planes.md names what user space proves
		case !strings.HasSuffix(r.Lab, record.WithoutIPVS):
			withIPVS = append(withIPVS, r.Where())
		case passed[kernel] == len(claims[row.Number]):
			withNFTables = append(withNFTables, r.Where())
		}
	}
	return strings.Join(names, "<br>"), strings.Join(withIPVS, "<br>"), strings.Join(withNFTables, "<br>")
}
