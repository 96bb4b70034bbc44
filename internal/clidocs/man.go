package clidocs

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// man returns a page of section 1. It uses only the macros that every man implementation supports.
func man(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %q 1 \"\" kube-ipvs \"User Commands\"\n", strings.ToUpper(pageName(c)))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(pageName(c)), escape(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", escape(c.UseLine()))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", paragraphs(about(c)))
	writeOptions(&b, c)
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", escape(strings.TrimRight(c.Example, "\n")))
	}
	var names []string
	for _, r := range related(c) {
		names = append(names, fmt.Sprintf(".BR %s (1)", escape(pageName(r))))
	}
	if len(names) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(names, " ,\n"))
	}
	return b.String()
}

func writeOptions(b *strings.Builder, c *cobra.Command) {
	title := ".SH OPTIONS\n"
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		b.WriteString(title)
		title = ""
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, ".TP\n.B %s\n%s", escape(strings.TrimSpace(name+" "+kind)), escape(usage))
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(b, " (default %s)", escape(f.DefValue))
		}
		b.WriteString("\n")
	})
}

func paragraphs(text string) string { return strings.ReplaceAll(escape(text), "\n\n", "\n.PP\n") }

// escape quotes the characters that roff interprets: backslashes, hyphens (printed as dashes), and a dot or quote at
// the start of a line.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
