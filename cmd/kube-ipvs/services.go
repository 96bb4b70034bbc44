//go:build linux

package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

func newServices(m *machine.Machine) *cobra.Command {
	l := listFlags{inspection: inspection{forms: []string{asTable, asWide, asJSON, asYAML, asName}}}
	cmd := &cobra.Command{
		Use:   "services [NAMESPACE/NAME | NAME -n NAMESPACE]",
		Short: "Show the Services of this node with their endpoints and connections",
		Long: `services shows the Services that this node's agent serves, with their current connections from the
kernel. If you name a Service, it shows all details: the virtual servers, the origin of each setting,
and every endpoint with its state.

If no agent responds, it shows the virtual servers in the owner records of the kernel. If the kernel
cannot be read, it shows only the agent's data. In both cases, a note lists what is unknown. In user
space, only the agent knows its connections: if it does not answer, the command fails.`,
		Example: `  kube-ipvs services
  kube-ipvs services kube-system/kube-dns
  kube-ipvs services -n shop --sort-by active
  kube-ipvs services -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := l.services(cmd, m, args)
			if err != nil {
				return err
			}
			return inspect.Write(cmd.OutOrStdout(), l.output, list, func(w io.Writer) error {
				if l.output == asName {
					return inspect.PrintNames(w, list)
				}
				if len(args) > 0 && l.output == asTable {
					return inspect.PrintService(w, list.Items[0])
				}
				return inspect.PrintServices(w, list, l.table())
			})
		},
	}
	l.addFlags(cmd)
	return cmd
}
