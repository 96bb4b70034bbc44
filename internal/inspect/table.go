package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// Table describes how a table is printed.
type Table struct {
	Wide      bool
	NoHeaders bool
	// SortBy is the title of a column, in upper or lower case. If it is empty, the rows keep their order.
	SortBy string
	// Widths are the column widths of an earlier table that this one continues. Writing the table may increase them.
	Widths *[]int
}

// WriteTable writes titles and rows.
func WriteTable(w io.Writer, titles []string, rows [][]string, form Table) error {
	t := newTable(titles...)
	for _, row := range rows {
		t.row(row...)
	}
	return t.writeAs(w, form)
}

// CheckSort returns an error if the table has no column SortBy.
func (form Table) CheckSort(titles []string) error {
	_, err := form.column(titles)
	return err
}

// column returns the index of the column to sort by, or -1.
func (form Table) column(titles []string) (int, error) {
	i := slices.Index(titles, strings.ToUpper(form.SortBy))
	if i < 0 && form.SortBy != "" {
		return i, fmt.Errorf("--sort-by %q: use one of %s", form.SortBy, strings.ToLower(strings.Join(titles, ", ")))
	}
	return i, nil
}

func (t *table) writeAs(w io.Writer, form Table) error {
	i, err := form.column(t.rows[0])
	if err != nil {
		return err
	}
	if i >= 0 {
		slices.SortStableFunc(t.rows[1:], func(a, b []string) int { return compareCells(a[i], b[i]) })
	}
	if form.NoHeaders {
		t.rows = t.rows[1:]
	}
	return t.writeColumns(w, form.Widths)
}

// compareCells sorts numbers before text, and by value: 9s before 10s, 2/2 before 10/10.
func compareCells(a, b string) int {
	x, isNumber := leadingNumber(a)
	y, isAlso := leadingNumber(b)
	switch {
	case isNumber && isAlso:
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a, b))
	case isNumber != isAlso:
		return map[bool]int{true: -1, false: 1}[isNumber]
	}
	return strings.Compare(a, b)
}

func leadingNumber(text string) (uint64, bool) {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

type table struct{ rows [][]string }

func newTable(titles ...string) *table {
	t := &table{}
	if len(titles) > 0 {
		t.rows = append(t.rows, titles)
	}
	return t
}

func (t *table) add(titles ...string) { t.rows[0] = append(t.rows[0], titles...) }

// row adds a row. Empty cells are shown as "-". Other people choose the texts of some cells.
func (t *table) row(cells ...string) {
	filled := slices.Clone(cells)
	for i, c := range filled {
		filled[i] = cmp.Or(finding.Printable(c), "-")
	}
	t.rows = append(t.rows, filled)
}

// more continues the last cell of the previous row.
func (t *table) more(text string) { t.rows = append(t.rows, []string{"", finding.Printable(text)}) }

func (t *table) write(w io.Writer) error { return t.writeColumns(w, nil) }

func (t *table) writeColumns(w io.Writer, before *[]int) error {
	var widths []int
	if before != nil {
		widths = *before
		defer func() { *before = widths }()
	}
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range t.rows {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("%-*s   ", widths[i], cell)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	return nil
}
