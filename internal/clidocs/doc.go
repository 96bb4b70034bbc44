// Package clidocs generates the command-line reference from the cobra commands, as Markdown and man pages. It
// performs no I/O. A test in cmd/kube-ipvs compares its output with docs/cli.
//
// May import: cobra and pflag.
package clidocs

import (
	"strings"

	"github.com/spf13/cobra"
)

// Files returns the text of every page, keyed by its path below docs/cli.
func Files(root *cobra.Command) map[string]string {
	files := map[string]string{}
	add := func(c *cobra.Command) {
		files[pageName(c)+".md"] = markdown(c)
		files["man/"+pageName(c)+".1"] = man(c)
	}
	each(root, add)
	return files
}

// each visits a command and its subcommands, skipping hidden ones.
func each(c *cobra.Command, visit func(*cobra.Command)) {
	if c.Hidden || c.Name() == "help" {
		return
	}
	visit(c)
	for _, sub := range c.Commands() {
		each(sub, visit)
	}
}

// pageName returns the name of the page, such as kube-ipvs-config-view for "kube-ipvs config view".
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func related(c *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	if c.HasParent() {
		all = append(all, c.Parent())
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			all = append(all, sub)
		}
	}
	return all
}

func about(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short
}
