package main

import (
	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

func newServices(m *machine) *cobra.Command {
	l := look{forms: []string{asTable, asWide, asJSON, asYAML}}
	cmd := &cobra.Command{
		Use:   "services [NAMESPACE/NAME]",
		Short: "Show the Services of this node with their endpoints and connections",
		Long: `services asks the agent of this node which Services it serves, and the kernel for the connections of this
moment. With the name of a Service it shows everything of it: its virtual servers, where each setting
comes from, and every endpoint with its state.

Where no agent answers it shows the virtual servers that are recorded as ours; where the kernel's cannot be
read, what the agent knows of them. It says what is unknown then.`,
		Example: `  kube-ipvs services
  kube-ipvs services kube-system/kube-dns
  kube-ipvs services -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.check(cmd); err != nil {
				return err
			}
			list, err := l.services(cmd, m, args)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			return l.print(out, list, func() error {
				if len(args) > 0 && l.output == asTable {
					return inspect.PrintService(out, list.Items[0])
				}
				return inspect.PrintServices(out, list, l.output == asWide)
			})
		},
	}
	l.addFlags(cmd)
	return cmd
}
