package conformance

import (
	_ "embed"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance/upstream"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// Row is a behavior of a Service proxy.
type Row struct {
	Number int
	Title  string
	// Excuse is the reason why no test is needed: a node's proxy is not responsible for the behavior.
	Excuse string
	// UnitTests prove it without packets; each is "directory.TestName".
	UnitTests []string
	// Specs of Kubernetes' own tests exercise it. The labels at the end of a name are left out.
	Specs []string
}

// A line of rows.txt is a row: its number and title, then, after bars, "excuse: ...", "test: ..." and "spec: ...".
//
//go:embed rows.txt
var rowsText string

// Rows in order of their numbers.
var Rows = readRows(rowsText)

func readRows(text string) (rows []Row) {
	for line := range strings.Lines(text) {
		parts := strings.Split(strings.TrimSpace(line), " | ")
		number, title, _ := strings.Cut(parts[0], " ")
		row := Row{Title: title}
		row.Number, _ = strconv.Atoi(number) // TestRowsAreNumbered notices
		for _, part := range parts[1:] {
			switch kind, value, _ := strings.Cut(part, ": "); kind {
			case "excuse":
				row.Excuse = value
			case "test":
				row.UnitTests = append(row.UnitTests, value)
			case "spec":
				row.Specs = append(row.Specs, value)
			default:
				panic("rows.txt: " + part)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// specLabels are those at the end of a spec's name.
var specLabels = regexp.MustCompile(`( ?\[[^\]]*\])+$`)

// specName returns the spec's name as in Row.Specs.
func specName(spec string) string {
	return specLabels.ReplaceAllString(strings.TrimPrefix(spec, "[sig-network] "), "")
}

// passedSpecs returns the row's specs that passed.
func (row Row) passedSpecs(results []record.Test) (names []string) {
	for _, r := range results {
		if name := specName(r.Test); r.Package == upstream.Package && r.Status == "PASS" && slices.Contains(row.Specs, name) {
			names = append(names, name)
		}
	}
	return names
}
