package guides

import (
	"fmt"
	"regexp"
	"strings"
)

const anything = "..."

// Times come before durations, because part of a time looks like a duration.
var varying = []struct {
	looks *regexp.Regexp
	as    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ns|µs|ms|s|m|h|d))+\b`), "DURATION"},
	// ipvsadm's first line contains the size of the kernel's connection table, which grows on some kernels.
	{regexp.MustCompile(`\(size=\d+\)`), "(size=N)"},
}

// Match returns an error if a program's output differs from the page. The error shows the difference.
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

// In want, a line of dots matches any number of lines.
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
