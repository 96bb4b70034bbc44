// Package clidocs makes the reference of the command line from the commands themselves: Markdown and man pages. It is pure. A test
// of cmd/kube-ipvs keeps docs/cli equal to what it makes.
//
// May import: cobra and pflag.
package clidocs

import (
	"strings"

	"github.com/spf13/cobra"
)

// Files makes every page, by its path below docs/cli.
func Files(root *cobra.Command) map[string]string {
	files := map[string]string{}
	add := func(c *cobra.Command) {
		files[pageName(c)+".md"] = markdown(c)
		files["man/"+pageName(c)+".1"] = man(c)
	}
	each(root, add)
	return files
}

// each visits a command and all below it that are shown.
func each(c *cobra.Command, visit func(*cobra.Command)) {
	if c.Hidden || c.Name() == "help" {
		return
	}
	visit(c)
	for _, sub := range c.Commands() {
		each(sub, visit)
	}
}

// pageName is kube-ipvs-config-view for kube-ipvs config view.
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// related are the commands above and below.
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

// about is what the command does, at length where it says so.
func about(c *cobra.Command) string {
	if c.Long != "" {
		return c.Long
	}
	return c.Short
}
