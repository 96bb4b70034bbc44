package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

func newConns(m *machine) *cobra.Command {
	l := listFlags{inspection: inspection{forms: []string{asTable, asWide, asJSON, asYAML}}}
	cmd := &cobra.Command{
		Use:   "conns [NAMESPACE/NAME | NAME -n NAMESPACE]",
		Short: "Show the connections through this node's virtual servers, by Service",
		Long: `conns lists the connections that IPVS tracks now, with their Service and the pod that serves them.
Lines with the state AFFINITY are not connections: they bind a client to its endpoint.`,
		Example: `  kube-ipvs conns
  kube-ipvs conns default/web -o wide`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.check(cmd); err != nil {
				return err
			}
			services, err := l.services(cmd, m, args)
			if err != nil {
				return err
			}
			conns, err := m.connections()
			if err != nil {
				return fmt.Errorf("%s", plainly(err))
			}
			list := inspect.Connections(conns, services)
			out := cmd.OutOrStdout()
			return l.print(out, list, func() error { return inspect.PrintConnections(out, list, l.table()) })
		},
	}
	l.addFlags(cmd)
	return cmd
}
