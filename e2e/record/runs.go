package record

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// KernelsPage is the page with the table of results on stock kernels.
const KernelsPage = "docs/kernel-support.md"

var kernelsTable = regexp.MustCompile(`(?s)(<!-- table kernels -->\n).*?(<!-- end -->)`)

// WithKernels fills the table of KernelsPage with the newest run of each part that tests a stock kernel.
func WithKernels(page string, lines []Line) (string, error) {
	if len(kernelsTable.FindAllString(page, -1)) != 1 {
		return "", fmt.Errorf("%s must have one table of kernels", KernelsPage)
	}
	var rows strings.Builder
	rows.WriteString("| what ran | kernel | result | time | commit, date |\n|---|---|---|---|---|\n")
	for _, age := range Ages(lines, func(string) int { return Unknown }) {
		if kind, _, _ := strings.Cut(age.Part.Name, "-"); kind == "kernel" || kind == "stories" {
			rows.WriteString(kernelRow(age.Part, age.Line))
		}
	}
	return kernelsTable.ReplaceAllString(page, "${1}"+rows.String()+"${2}"), nil
}

func kernelRow(p Part, l *Line) string {
	if l == nil {
		return fmt.Sprintf("| %s | | has not run | | |\n", p.Proves)
	}
	result := fmt.Sprintf("%d passed", l.Passed)
	if l.State != Passed {
		result = fmt.Sprintf("%s: %d passed, %d failed", l.State, l.Passed, l.Failed)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %.8s, %.10s |\n", p.Proves, cmp.Or(l.Kernel, "none"), result, time.Duration(l.Seconds)*time.Second, l.Commit, l.Date)
}
