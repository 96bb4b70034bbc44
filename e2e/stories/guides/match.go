package guides

import (
	"fmt"
	"regexp"
	"strings"
)

const anything = "..."

// What differs from run to run, in the order of looking: a time holds what looks like durations.
var varying = []struct {
	looks *regexp.Regexp
	as    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h|d))+\b`), "DURATION"},
	// Of the kernel's table, in the first line of ipvsadm: some kernels let it grow.
	{regexp.MustCompile(`\(size=\d+\)`), "(size=N)"},
}

// Match says how a program's output differs from what a page shows of it.
func Match(shown []string, output string) error {
	want := plain(shown)
	if len(want) == 0 {
		return nil
	}
	have := plain(strings.Split(strings.TrimRight(output, "\n"), "\n"))
	if matchLines(want, have) {
		return nil
	}
	return fmt.Errorf("the page shows\n\t%s\nbut the output is\n\t%s", strings.Join(want, "\n\t"), strings.Join(have, "\n\t"))
}

// plain takes out what may differ, and empty lines at the end.
func plain(lines []string) []string {
	var all []string
	for _, line := range lines {
		for _, v := range varying {
			line = v.looks.ReplaceAllString(line, v.as)
		}
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	for len(all) > 0 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// matchLines: a line of dots matches any number of lines.
func matchLines(want, have []string) bool {
	switch {
	case len(want) == 0:
		return len(have) == 0
	case want[0] == anything:
		return matchLines(want[1:], have) || len(have) > 0 && matchLines(want, have[1:])
	case len(have) == 0:
		return false
	}
	return matchLine(want[0], have[0]) && matchLines(want[1:], have[1:])
}

func matchLine(want, have string) bool {
	parts := strings.Split(want, anything)
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(have)
}
