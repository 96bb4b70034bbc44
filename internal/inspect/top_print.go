package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// topColumns are the columns by which the screen can sort, with their keys.
var topColumns = []struct {
	key     rune
	title   string
	compare func(a, b TopEntry) int
}{
	{'c', "CONN/S", func(a, b TopEntry) int { return cmp.Compare(b.Traffic.Connections, a.Traffic.Connections) }},
	{'p', "PKT/S", func(a, b TopEntry) int { return cmp.Compare(b.Packets, a.Packets) }},
	{'b', "OUT/S", func(a, b TopEntry) int { return cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut) }},
	{'a', "ACTIVE", func(a, b TopEntry) int { return cmp.Compare(b.Active, a.Active) }},
	{'i', "INACTIVE", func(a, b TopEntry) int { return cmp.Compare(b.Inactive, a.Inactive) }},
	{'d', "DRAINING", func(a, b TopEntry) int { return cmp.Compare(b.Draining, a.Draining) }},
	{'n', "NAME", func(a, b TopEntry) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	}},
}

// PrintTop writes a line for each frontend and, if wide, for each endpoint.
func PrintTop(w io.Writer, list TopList, form Table) error {
	if form.SortBy != "" {
		i, err := topColumn(form.SortBy)
		if err != nil {
			return err
		}
		list.Items, form.SortBy = slices.SortedStableFunc(slices.Values(list.Items), topColumns[i].compare), ""
	}
	return topTable(list, form.Wide).writeAs(w, form)
}

// topColumn returns the index of the column with this title.
func topColumn(name string) (int, error) {
	var titles []string
	for i, c := range topColumns {
		if strings.EqualFold(c.title, name) {
			return i, nil
		}
		titles = append(titles, strings.ToLower(c.title))
	}
	return 0, fmt.Errorf("--sort-by %q: use one of %s", name, strings.Join(titles, ", "))
}

func topTable(list TopList, endpoints bool) *table {
	t := newTable("NAMESPACE", "NAME", "PORT", "KIND", "ADDRESS", "CONN/S", "PKT/S", "IN/S", "OUT/S", "ACTIVE", "INACTIVE", "DRAINING", "SHARE")
	for _, e := range list.Items {
		t.row(slices.Concat([]string{e.Namespace, e.Name, e.Port, string(e.Kind), e.Address.String() + "/" + e.Protocol}, trafficCells(e.Traffic),
			[]string{strconv.FormatUint(e.Active, 10), strconv.FormatUint(e.Inactive, 10), strconv.Itoa(e.Draining), ""})...)
		if !endpoints {
			continue
		}
		for _, o := range e.Endpoints {
			t.row(slices.Concat([]string{"", "  " + o.Pod, "", string(o.State), o.Address.String()}, trafficCells(o.Traffic),
				[]string{strconv.FormatUint(o.Active, 10), strconv.FormatUint(o.Inactive, 10), "", percent(o.Share) + " of " + percent(o.WeightShare)})...)
		}
	}
	return t
}

func trafficCells(t Traffic) []string {
	return []string{short(t.Connections), short(t.Packets), short(t.BytesIn), short(t.BytesOut)}
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// short formats a number in at most five characters, such as 0.5, 12, 3.4k or 56M.
func short(n float64) string {
	units := []string{"", "k", "M", "G", "T"}
	for len(units) > 1 && n >= 999.5 {
		n, units = n/1000, units[1:]
	}
	if n == 0 || n >= 9.95 {
		return fmt.Sprintf("%.0f%s", n, units[0])
	}
	return fmt.Sprintf("%.1f%s", n, units[0])
}
