package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// statusStops is the exit status of explain if a packet does not arrive.
const statusStops = statusError(3)

// statusUnknown is the exit status if it is unknown whether a packet arrives.
const statusUnknown = statusError(1)

func newExplain(m *machine) *cobra.Command {
	l := inspection{forms: textForms}
	var from, by string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain ADDRESS:PORT[/PROTOCOL] | NAMESPACE/NAME[:PORT]",
		Short: "Trace a packet to a Service, and show why it does not arrive",
		Long: `explain traces the first packet of a connection through the current kernel state of this node: the rules
it matches, the virtual server, the possible endpoints, and the client address that they see. It prints
the verdict, the reasons, the steps that decide, and the endpoints; with -v it prints every step. Each
step names its kernel object. If the packet does not arrive, explain says why, and names missing kernel
objects. It sends no packet.

--from traces the packet of one client: a pod, an external address, or an address of the node. With the
client's port it traces the existing connection from that port, if there is one. The exit status is 3 if
a packet does not arrive, or arrives at some endpoints only, and 1 if that is unknown: part of the kernel
state could not be read, or no agent runs on this node and another proxy may serve the Service.`,
		Example: `  kube-ipvs explain 10.96.0.10:53/udp
  kube-ipvs explain kube-system/kube-dns:dns --from 10.244.1.7
  kube-ipvs explain 10.96.0.1:443 --from 10.244.1.7:40312
  kube-ipvs explain '[fd00:10:96::a]:53/udp' -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.check(cmd); err != nil {
				return err
			}
			query, err := explain.ParseQuery(args[0])
			if err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			client, err := parseClient(from, by)
			if err == nil && by != "" {
				err = checkInterface(by, m.interfaces)
			}
			if err == nil && query.Addr.IsValid() && client.addr.IsValid() && query.Addr.Addr().Is4() != client.addr.Is4() {
				err = fmt.Errorf("--from %s and %s are of different address families", client.addr, query.Addr)
			}
			if err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			answers, err := explainNow(cmd, m, &l, query, client)
			if err != nil {
				return err
			}
			return l.printExplanations(cmd, answers, all)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "address of the client, with its port to trace an existing connection (default: any client)")
	cmd.Flags().StringVar(&by, "interface", "", "interface on which the packet arrives (default: the interface of the route to the client)")
	cmd.Flags().BoolVarP(&all, "verbose", "v", false, "show every step and every endpoint")
	l.addFlags(cmd)
	return cmd
}

// client is the sender of the packet.
type client struct {
	addr netip.Addr // invalid: any
	port uint16     // 0: any, for a new connection
	by   string     // interface; empty: unknown
}

func parseClient(from, by string) (client, error) {
	if from == "" {
		return client{by: by}, nil
	}
	if addr, err := netip.ParseAddr(from); err == nil {
		return client{addr: addr.Unmap(), by: by}, nil
	}
	addr, err := netip.ParseAddrPort(from)
	if err != nil || addr.Port() == 0 {
		return client{}, fmt.Errorf("--from %q: use an IP address such as 10.244.1.7, or with a port such as 10.244.1.7:40312 or [fd00::7]:40312", from)
	}
	return client{addr.Addr().Unmap(), addr.Port(), by}, nil
}

func checkInterface(name string, list func() ([]string, error)) error {
	existing, err := list()
	if err == nil && !slices.Contains(existing, name) {
		err = fmt.Errorf("--interface %q: use an interface of the network namespace that this command runs in: %s", name, strings.Join(existing, ", "))
	}
	return err
}

// explainNow queries the agent before the kernel, so the wanted state is never newer than the kernel state.
func explainNow(cmd *cobra.Command, m *machine, l *inspection, query explain.Query, from client) ([]explain.Explanation, error) {
	at := query.Addr.Addr()
	v, err := l.ask(cmd, agent.Query{Service: query.Service, Address: at, All: at.IsValid() && at.IsLoopback()})
	if err != nil {
		return nil, err
	}
	base := view.BaseOf(plainBase(kernel.IPVSWithIPTables), 0)
	if v != nil {
		base = v.Base
	}
	k := m.kernel(cmd.Context(), lookedAt{client: from.addr, concerns: query.Concerns(v), sysctls: base.Sysctls})
	if v == nil {
		base = k.Closest(view.BaseOf(plainBase(k.Mode), 0).JumpsOnly(), view.BaseOf(baseBeside(k.Mode), 0).JumpsOnly())
	}
	places, err := query.Keys(k, v)
	if err != nil {
		return nil, err
	}
	var answers []explain.Explanation
	for _, place := range places {
		if from.addr.IsValid() && from.addr.Is4() != place.Addr.Addr().Is4() {
			continue
		}
		question := explain.Question{To: place, From: from.addr, FromPort: from.port, Interface: from.by}
		answers = append(answers, explain.Explain(k, v, base, question))
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("--from %s: no frontend has this address family", from.addr)
	}
	return answers, nil
}

// explanationList is the JSON and YAML output of explain.
type explanationList struct {
	header
	Items []explain.Explanation `json:"items"`
}

func (l *inspection) printExplanations(cmd *cobra.Command, answers []explain.Explanation, all bool) error {
	out := cmd.OutOrStdout()
	err := l.print(out, explanationList{headerOf("ExplanationList"), answers}, func() error {
		explain.Print(out, answers, all)
		return nil
	})
	for _, a := range answers {
		switch {
		case err != nil && !errors.Is(err, statusUnknown):
			return err
		case a.Verdict == explain.Stops || a.Verdict == explain.Partly:
			return statusStops
		case a.Verdict == explain.Unknown:
			err = statusUnknown
		}
	}
	return err
}
