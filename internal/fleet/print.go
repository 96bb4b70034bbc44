package fleet

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Print writes the report as a table, followed by what needs attention.
func Print(w io.Writer, r Report) error {
	c := commands[r.Command]
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	line(t, slices.Concat(c.subject, c.says, c.sums, []string{"NODES"}))
	responded := len(r.Nodes) - len(r.Silent)
	for _, row := range r.Rows {
		cells := slices.Concat(row.Subject, row.Says)
		for _, n := range row.Sums {
			cells = append(cells, strconv.FormatUint(n, 10))
		}
		line(t, append(cells, nodes(row.Nodes, responded)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range r.Disagreements {
		fmt.Fprintf(w, "! nodes disagree about %s\n", printable(d))
	}
	for _, s := range r.Silent {
		fmt.Fprintf(w, "! %s: %s\n", printable(s.Node), printable(s.Error))
	}
	if r.NotAsked > 0 {
		fmt.Fprintf(w, "! %d more nodes were not asked; use --all-nodes\n", r.NotAsked)
	}
	_, err := fmt.Fprintf(w, "%d of %d nodes responded\n", responded, len(r.Nodes)+r.NotAsked)
	return err
}

// nodes returns the names of the nodes of a row.
func nodes(names []string, responded int) string {
	if len(names) == responded && responded > 1 {
		return fmt.Sprintf("all %d", responded)
	}
	return strings.Join(names, ",")
}

func line(w io.Writer, cells []string) {
	for i, c := range cells {
		if c == "" {
			c = "-"
		}
		if i > 0 {
			_, _ = io.WriteString(w, "\t") // Flush reports the error
		}
		_, _ = io.WriteString(w, printable(c))
	}
	_, _ = io.WriteString(w, "\n")
}

// printable replaces control characters. Otherwise, a node could send escape sequences to the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, s)
}
