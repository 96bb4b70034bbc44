package clidocs

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var (
	codeSpan  = regexp.MustCompile("`+([^`]+)`+")
	separator = regexp.MustCompile(`\||&&|;| -- |\n`)
)

// Mistakes lists the commands and flags in the code of a Markdown page that the program does not have.
func Mistakes(root *cobra.Command, page string) (mistakes []string) {
	for _, line := range CodeLines(page) {
		words, names := strings.CutPrefix(line+" ", root.CommandPath()+" ")
		if !names {
			continue
		}
		if err := check(root, strings.Fields(words)); err != nil {
			mistakes = append(mistakes, fmt.Sprintf("%s: %v", line, err))
		}
	}
	return mistakes
}

// CodeLines returns the text of all code spans and blocks of a page, one command a line.
func CodeLines(page string) (lines []string) {
	add := func(code string) {
		for _, line := range separator.Split(strings.ReplaceAll(code, "\\\n", " "), -1) {
			line = strings.TrimSpace(line)
			lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(line, "$ "), "sudo "))
		}
	}
	for i, part := range strings.Split(page, "```") {
		if i%2 == 1 {
			add(part)
			continue
		}
		for _, m := range codeSpan.FindAllStringSubmatch(part, -1) {
			add(strings.Join(strings.Fields(m[1]), " ")) // a span may continue on the next line
		}
	}
	return lines
}

func check(c *cobra.Command, words []string) error {
	for _, word := range words {
		if c.DisableFlagParsing || word == "..." || word == "-" {
			return nil
		}
		if strings.HasPrefix(word, "-") {
			if flag, _, _ := strings.Cut(strings.TrimRight(word, ".,"), "="); !HasFlag(c, flag) {
				return fmt.Errorf("%s has no flag %s", c.CommandPath(), flag)
			}
			continue
		}
		if !c.HasSubCommands() {
			continue
		}
		sub, _, err := c.Find([]string{word})
		if err != nil || sub == c {
			return fmt.Errorf("%s has no command %s", c.CommandPath(), word)
		}
		c = sub
	}
	return nil
}

// HasFlag reports whether a command accepts a flag, such as --output or -o.
func HasFlag(c *cobra.Command, flag string) bool {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	for _, set := range []*pflag.FlagSet{c.Flags(), c.InheritedFlags()} {
		if name, long := strings.CutPrefix(flag, "--"); long && set.Lookup(name) != nil || len(flag) == 2 && set.ShorthandLookup(flag[1:]) != nil {
			return true
		}
	}
	return false
}
