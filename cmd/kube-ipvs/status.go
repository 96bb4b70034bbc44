package main

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

// statusUnwell is the exit status if the agent does not respond or is not well.
const statusUnwell = statusError(3)

func newStatus(m *machine) *cobra.Command {
	l := inspection{forms: []string{asTable, asJSON, asYAML}}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of this node's agent",
		Long: `status shows the agent's sources and their age, its last syncs, repaired drift, the kernel with its
modules, the iptables variant, and all problems. Lines that start with an exclamation mark need
attention. If the agent is not well, the evidence and a remedy follow, as in doctor.

The exit status is 0 if the agent is well, 3 if it does not respond, has failed to sync, or uses outdated
objects or settings, and 1 if that is unknown, such as when the command does not run as root. Problems
of single Services do not count.

If no agent responds, status shows only the kernel state. If the kernel has no IPVS or cannot be read, it
names the cause and the remedy.`,
		Example: "  kube-ipvs status\n  kube-ipvs status -o yaml",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.check(cmd); err != nil {
				return err
			}
			v, silence, err := l.askWhy(cmd, agent.Query{})
			if err != nil {
				return err
			}
			machine := inspect.Machine{Kernel: m.release(), Modules: m.modules()}
			if table, err := m.table(cmd.Context()); err == nil {
				machine.Count(table.servers, table.mode, table.ours)
			} else {
				machine.Error = plainly(err)
			}
			why := ""
			if silence != nil {
				why = silence.Error()
			}
			document := inspect.StatusOf(v, why, machine)
			if errors.Is(silence, fs.ErrPermission) { // the agent may be well
				document.Findings[0].Severity = finding.Warning
			}
			out := cmd.OutOrStdout()
			if err := l.print(out, document, func() error { return inspect.PrintStatus(out, document) }); err != nil {
				return err
			}
			switch {
			case errors.Is(silence, fs.ErrPermission):
				return statusUnknown
			case len(document.Unwell) > 0:
				return statusUnwell
			}
			return nil
		},
	}
	l.addFlags(cmd)
	return cmd
}

// ipvsModules are the loaded IPVS modules, sorted.
func ipvsModules() []string {
	modules := []string{}
	text, err := os.ReadFile("/proc/modules")
	if err != nil {
		return modules // a kernel without modules
	}
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, "ip_vs") {
			modules = append(modules, name)
		}
	}
	slices.Sort(modules)
	return modules
}
