//go:build linux

package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

func newConns(m *machine.Machine) *cobra.Command {
	l := listFlags{inspection: inspection{forms: []string{asTable, asWide, asJSON, asYAML}}}
	cmd := &cobra.Command{
		Use:   "conns [NAMESPACE/NAME | NAME -n NAMESPACE]",
		Short: "Show the connections through this node's virtual servers, by Service",
		Long: `conns lists the connections that IPVS currently tracks, with the Service and the pod of each connection.
Where nftables balances, it lists those that conntrack translates to an endpoint, and in user space, those that
the agent's process forwards. Lines with the state AFFINITY are not connections: each of them binds a client to
an endpoint.`,
		Example: `  kube-ipvs conns
  kube-ipvs conns default/web -o wide`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			services, err := l.services(cmd, m, args)
			if err != nil {
				return err
			}
			connections, err := m.Connections(cmd.Context(), l.socket, services.Selects())
			if err != nil {
				return err
			}
			list := inspect.Connections(connections, services)
			return inspect.Write(cmd.OutOrStdout(), l.output, list, func(w io.Writer) error { return inspect.PrintConnections(w, list, l.table()) })
		},
	}
	l.addFlags(cmd)
	return cmd
}
