package inspect

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// HistoryList is the document of the command history.
type HistoryList struct {
	view.Header
	// Node is the node's name. Started is the time when the agent started and its history begins.
	Node    string `json:"node"`
	Started string `json:"started"`
	// Unknown lists missing information.
	Unknown []string `json:"unknown"`
	// Dropped counts older entries that the agent has discarded.
	Dropped int              `json:"dropped"`
	Items   []*view.PastSync `json:"items"`
}

// timeLayout is RFC 3339 with milliseconds, because a node can run several syncs per second.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// HistoryOf returns the document with the selected entries.
func HistoryOf(v *view.View, selected []*view.PastSync) HistoryList {
	list := HistoryList{Header: view.HeaderOf("HistoryList"), Node: v.Node.Name, Started: v.Node.Started.UTC().Format(timeFormat), Unknown: v.Missing(), Items: selected}
	if v.History != nil {
		list.Dropped = v.History.Dropped
	}
	return list
}

// PrintHistory writes a line for each entry.
func PrintHistory(w io.Writer, list HistoryList, form Table) error {
	t := newTable("TIME", "KIND", "CAUSE", "SERVICES", "CHANGES", "TOOK")
	if form.Wide {
		t.add("WAITED", "GATHER", "COMPILE", "PLAN", "APPLY", "OPERATIONS")
	}
	t.add("RESULT")
	for _, e := range list.Items {
		row, result := append(HistoryCells(e), milliseconds(e.Seconds)), Result(e)
		if form.Wide {
			s := e.Stages
			for _, seconds := range []float64{s.Waited, s.Gather, s.Bootstrap + s.Compile, s.Plan, s.Apply} {
				row = append(row, milliseconds(seconds))
			}
			row = append(row, operationsOf(e))
		} else if runes := []rune(result); len(runes) > maxResult {
			result = string(runes[:maxResult]) + "..."
		}
		t.row(append(row, result)...)
	}
	return t.writeAs(w, form)
}

const maxResult = 140

// HistoryCells returns the table cells for a sync.
func HistoryCells(e *view.PastSync) []string {
	return []string{e.Time.UTC().Format(timeLayout), string(e.Kind), causes(e), summary(e.Services), changesOf(e)}
}

// PrintHistoryNames writes the name of each Service in the entries once, in the form that other commands accept.
func PrintHistoryNames(w io.Writer, list HistoryList) error {
	var names []string
	for _, e := range list.Items {
		names = append(names, e.Services.Items...)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if _, err := fmt.Fprintln(w, name); err != nil {
			return err
		}
	}
	return nil
}

func causes(e *view.PastSync) string {
	var all []string
	for _, c := range e.Causes {
		all = append(all, strings.TrimRight(string(c.Reason)+" "+summary(c.Objects), " "))
	}
	if e.Drift.Count > 0 {
		all = append(all, "drift")
	}
	return finding.Printable(strings.Join(all, ", "))
}

func summary(list view.Some[string]) string {
	switch {
	case list.Count == 0:
		return ""
	case len(list.Items) == 0:
		return strconv.Itoa(list.Count)
	case list.Count == 1:
		return list.Items[0]
	}
	return fmt.Sprintf("%s and %d more", list.Items[0], list.Count-1)
}

func changesOf(e *view.PastSync) string {
	sum := view.OperationCount{}
	for _, o := range e.Operations {
		sum.Added, sum.Changed, sum.Removed = sum.Added+o.Added, sum.Changed+o.Changed, sum.Removed+o.Removed
	}
	return changes(sum)
}

func changes(o view.OperationCount) string {
	var parts []string
	for _, part := range []struct {
		sign  string
		count int
	}{{"+", o.Added}, {"~", o.Changed}, {"-", o.Removed}} {
		if part.count > 0 {
			parts = append(parts, part.sign+strconv.Itoa(part.count))
		}
	}
	return strings.Join(parts, " ")
}

func operationsOf(e *view.PastSync) string {
	var all []string
	for _, o := range e.Operations {
		all = append(all, o.Object+" "+changes(o))
	}
	return strings.Join(all, ", ")
}

// Result describes the most serious outcome of a sync.
func Result(e *view.PastSync) string {
	text := "ok"
	switch failures := e.Failures; {
	case len(failures.Items) > 0:
		text = "failed: " + failures.Items[0].Operation + ": " + failures.Items[0].Error + more(failures.Count)
	case e.Error != "":
		text = "failed: " + e.Error
	case e.Drift.Count > 0:
		text = "repaired: " + summary(view.Some[string]{Count: len(e.Drift.Items), Items: e.Drift.Items})
	case e.Waiting != "":
		text = "waiting: " + e.Waiting
	case e.Problems.Count > 0:
		text = "problem: " + summary(e.Problems)
	case e.Resolved.Count > 0:
		text = "resolved: " + summary(e.Resolved)
	}
	if e.Repeated > 0 {
		text = fmt.Sprintf("%d times until %s: %s", e.Repeated+1, e.Until().UTC().Format(timeLayout), text)
	}
	return finding.Printable(text)
}

func more(count int) string {
	if count == 1 {
		return ""
	}
	return fmt.Sprintf(" and %d more", count-1)
}

func milliseconds(seconds float64) string {
	return strconv.FormatFloat(1000*seconds, 'f', 1, 64) + "ms"
}
