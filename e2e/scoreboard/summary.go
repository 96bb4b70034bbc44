package scoreboard

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// figure is a measurement of a test or, if below is set, of a subtest.
type figure struct {
	name, text string
	below      bool
}

func (f figure) String() string {
	if f.below {
		return f.name + ": " + f.text
	}
	return f.text
}

// few is how many figures a row may have until those that differ only in their numbers are merged.
const few = 8

var (
	number     = regexp.MustCompile(`(\d+(\.\d+)?(h|ms|m|s|µs|ns))+|\d+`)
	clientPort = regexp.MustCompile(` \(\S+:\d+\)`)
)

// shape returns the text without its numbers, without ports of clients, and with "it" instead of the test's name.
func (f figure) shape() string { return number.ReplaceAllString(f.plain(), "#") }

func (f figure) plain() string {
	return strings.ReplaceAll(clientPort.ReplaceAllString(f.text, ""), f.name, "it")
}

// summarize returns a line for each figure or, if there are many, for those that differ only in their numbers.
func summarize(all []figure) (lines []string) {
	groups := map[string][]figure{}
	var shapes []string
	for _, f := range all {
		shape := f.shape()
		if groups[shape] == nil {
			shapes = append(shapes, shape)
		}
		groups[shape] = append(groups[shape], f)
	}
	for _, shape := range shapes {
		group := groups[shape]
		if len(all) > few && len(group) > 1 {
			lines = append(lines, merge(shape, group))
			continue
		}
		for _, f := range group {
			lines = append(lines, f.String())
		}
	}
	return lines
}

// merge replaces each # of the shape with the median of that number, and the worst if they differ.
func merge(shape string, group []figure) string {
	column := 0
	text := regexp.MustCompile("#").ReplaceAllStringFunc(shape, func(string) string {
		column++
		return spread(group, column-1)
	})
	return fmt.Sprintf("%d results: %s", len(group), text)
}

// spread describes one number of all figures. The longest time is the worst, and the smallest count.
func spread(group []figure, column int) string {
	type entry struct {
		of, text string
		value    float64
		isTime   bool
	}
	var entries []entry
	for _, f := range group {
		e := entry{of: f.name, text: number.FindAllString(f.plain(), -1)[column]}
		if d, err := time.ParseDuration(e.text); err == nil {
			e.value, e.isTime = d.Seconds(), true
		} else {
			e.value, _ = strconv.ParseFloat(e.text, 64)
		}
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		switch {
		case a.value < b.value:
			return -1
		case a.value > b.value:
			return 1
		}
		return 0
	})
	median, least, most := entries[len(entries)/2], entries[0], entries[len(entries)-1]
	switch {
	case least.value == most.value:
		return median.text
	case median.isTime:
		return fmt.Sprintf("%s (longest %s: %s)", median.text, most.text, most.of)
	}
	return fmt.Sprintf("%s (least %s: %s)", median.text, least.text, least.of)
}
