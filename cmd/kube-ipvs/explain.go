//go:build linux

package main

import (
	"cmp"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// statusStops is the exit status if a packet does not arrive.
const statusStops = statusError(3)

// statusUnknown is the exit status if explain cannot tell whether a packet arrives.
const statusUnknown = statusError(1)

// statusUnclear is the exit status if the answer depends on the client, or on rules that explain cannot evaluate.
const statusUnclear = statusError(4)

// statusOf maps each verdict to its exit status. All other verdicts mean success.
var statusOf = []struct {
	verdicts []explain.Verdict
	status   statusError
}{
	{[]explain.Verdict{explain.Stops, explain.Partly}, statusStops},
	{[]explain.Verdict{explain.Unknown}, statusUnknown},
	{[]explain.Verdict{explain.Unclear, explain.Depends}, statusUnclear},
}

func newExplain(m *machine.Machine) *cobra.Command {
	l := inspection{forms: textForms}
	var from, by string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain ADDRESS:PORT[/PROTOCOL] | NAMESPACE/NAME[:PORT]",
		Short: "Trace a packet to a Service, and show why it fails to arrive",
		Long: `explain traces the packets of a connection through the current kernel state of this node: the rules
they match, the virtual server, the possible endpoints, and the client address that they see. It prints
the verdict, the reasons, the decisive steps, and the endpoints; with -v, it prints every step. Each
step names its kernel object. If the packet does not arrive, explain shows the reason and any missing
kernel objects. It sends no packets.

--from traces the packet of one client: a pod, an external address, or an address of the node. With the
client's port, it traces the existing connection from that port, if there is one.

The exit status is 3 if a packet does not arrive, or arrives only at some endpoints. It is 4 if the answer
depends on the client, or on a rule that explain cannot evaluate. It is 1 if the answer is unknown: part
of the kernel state could not be read, or no agent runs on this node and another proxy might be serving
the Service.`,
		Example: `  kube-ipvs explain 10.96.0.10:53/udp
  kube-ipvs explain kube-system/kube-dns:dns --from 10.244.1.7
  kube-ipvs explain 10.96.0.1:443 --from 10.244.1.7:40312
  kube-ipvs explain '[fd00:10:96::a]:53/udp' -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := explain.ParseQuery(args[0])
			if err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			client, err := explain.ParseClient(from)
			if err := cmp.Or(m.CheckInterface(cmd.Context(), by), err, query.CheckFamily(client)); err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			client.Interface = by
			v, err := l.ask(cmd, viewFor(query))
			if err != nil {
				return err
			}
			answers, err := m.Explain(cmd.Context(), query, client, v)
			if err != nil {
				return err
			}
			return l.printExplanations(cmd, explanations{view.HeaderOf("ExplanationList"), v.Missing(), answers}, all)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "address of the client; add its port to trace an existing connection (default: any client)")
	cmd.Flags().StringVar(&by, "interface", "", "interface on which the packet arrives (default: the interface of the route to the client)")
	cmd.Flags().BoolVarP(&all, "verbose", "v", false, "show every step and every endpoint")
	l.addFlags(cmd)
	return cmd
}

// viewFor selects the Services that explain needs. A loopback address may belong to any node port.
func viewFor(query explain.Query) agent.Query {
	at := query.Addr.Addr()
	return agent.Query{Service: query.Service, Address: at, All: at.IsValid() && at.IsLoopback()}
}

type explanations struct {
	view.Header
	Unknown []string              `json:"unknown"`
	Items   []explain.Explanation `json:"items"`
}

func (l *inspection) printExplanations(cmd *cobra.Command, list explanations, all bool) error {
	err := inspect.Write(cmd.OutOrStdout(), l.output, list, func(w io.Writer) error {
		explain.Print(w, list.Items, all)
		return nil
	})
	if err != nil {
		return err
	}
	for _, s := range statusOf {
		if slices.ContainsFunc(list.Items, func(a explain.Explanation) bool { return slices.Contains(s.verdicts, a.Verdict) }) {
			return s.status
		}
	}
	return nil
}
