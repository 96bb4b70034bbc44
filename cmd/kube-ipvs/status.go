//go:build linux

package main

import (
	"errors"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
)

// statusUnwell is the exit status if the agent does not respond or is unhealthy.
const statusUnwell = statusError(3)

func newStatus(m *machine.Machine) *cobra.Command {
	l := inspection{forms: []string{asTable, asJSON, asYAML}}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of this node's agent",
		Long: `status shows the age of the agent's sources, its latest syncs, repaired drift, the kernel and its
modules, the iptables variant, and all problems. Lines that start with an exclamation mark need
attention. If the agent is unhealthy, status also shows the evidence and a remedy, like doctor.

The exit status is 0 if the agent is healthy. It is 3 if the agent does not respond, has failed to sync,
uses outdated objects or settings, or reports a problem with this node. It is 1 if the agent's health is
unknown, for example because the command does not run as root. Problems of individual Services do not
count.

An agent with --data-plane=userspace at loopback addresses has no status socket and does not respond. If
no agent responds, status shows only the kernel state. If the kernel lacks IPVS or cannot be read, status
names the cause and the remedy.`,
		Example: "  kube-ipvs status\n  kube-ipvs status -o yaml",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, silence, err := status.Ask(cmd.Context(), l.socket, agent.Query{})
			if err != nil {
				return err
			}
			document := inspect.StatusOf(v, silence, m.Status(cmd.Context(), l.socket))
			err = inspect.Write(cmd.OutOrStdout(), l.output, document, func(w io.Writer) error { return inspect.PrintStatus(w, document) })
			switch {
			case err != nil:
				return err
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
