package clidocs

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const head = "<!-- Written by \"go test ./cmd/kube-ipvs -update\"; change the text in the command. -->\n\n"

func markdown(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s%s.\n\n    %s\n\n%s\n", c.CommandPath(), head, c.Short, c.UseLine(), about(c))
	if c.Example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n%s\n", indent(c.Example))
	}
	if flags := c.NonInheritedFlags().FlagUsagesWrapped(120); strings.TrimSpace(flags) != "" {
		fmt.Fprintf(&b, "\n## Options\n\n```\n%s```\n", flags)
	}
	if list := related(c); len(list) > 0 {
		b.WriteString("\n## See also\n\n")
		for _, r := range list {
			fmt.Fprintf(&b, "- [%s](%s.md): %s\n", r.CommandPath(), pageName(r), r.Short)
		}
	}
	return b.String()
}

// indent replaces the two spaces before an example with the four of a code block.
func indent(example string) string {
	lines := strings.Split(strings.TrimRight(example, "\n"), "\n")
	for i, line := range lines {
		lines[i] = "    " + strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}
