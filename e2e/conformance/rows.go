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
	// Excuse says why a node's proxy is not responsible for the behavior. Such a row needs no test.
	Excuse string
	// UnitTests prove the behavior without packets. Their names are "directory.TestName".
	UnitTests []string
	// Specs are the specs of Kubernetes' own tests that exercise the behavior, without the labels at the end of their
	// names.
	Specs []string
}

// Each line of rows.txt is a row: a number and a title, then fields separated by bars: "excuse: ...", "test: ..." and
// "spec: ...".
//
//go:embed rows.txt
var rowsText string

// Rows lists all rows in numerical order.
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

var specLabels = regexp.MustCompile(`( ?\[[^\]]*\])+$`)

// specName removes the prefix and the labels of a spec's name.
func specName(spec string) string {
	return specLabels.ReplaceAllString(strings.TrimPrefix(spec, "[sig-network] "), "")
}

func (row Row) passedSpecs(results []record.Test) (names []string) {
	for _, r := range results {
		if name := specName(r.Test); r.Package == upstream.Package && r.Status == "PASS" && slices.Contains(row.Specs, name) {
			names = append(names, name)
		}
	}
	return names
}
