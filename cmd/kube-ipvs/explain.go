package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// statusStops is the exit status of explain when a packet does not arrive.
const statusStops = statusError(3)

func newExplain() *cobra.Command {
	l := look{forms: []string{asText, asJSON, asYAML}}
	var from string
	cmd := &cobra.Command{
		Use:   "explain ADDRESS:PORT[/PROTOCOL] | NAMESPACE/NAME[:PORT]",
		Short: "Show the way of a packet to a Service, step by step, and why it does not arrive",
		Long: `explain follows the first packet of a connection through this node's kernel as it is now: the rules
that judge it, the virtual server that takes it, the endpoints it may get, and whose address they see.
Each step names its kernel object. Where the packet does not arrive it says why, and it names what
the agent wants in the kernel that is not there.

With --from it does so for one client: a pod, an address outside, or one of the node's own. Its exit
status is 3 when a packet does not arrive. It sends no packet.`,
		Example: `  kube-ipvs explain 10.96.0.10:53/udp
  kube-ipvs explain kube-system/kube-dns:dns --from 10.244.1.7
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
			client, err := parseClient(from)
			if err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			answers, err := explainNow(cmd, &l, query, client)
			if err != nil {
				return err
			}
			return l.printExplanations(cmd, answers)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "address of the client (default: any)")
	l.addFlags(cmd)
	return cmd
}

func parseClient(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--from %q: want an IP address such as 10.244.1.7", text)
	}
	return addr.Unmap(), nil
}

// explainNow asks the agent and the kernel, in this order: what the agent wants is rather older than what the kernel has.
func explainNow(cmd *cobra.Command, l *look, query explain.Query, from netip.Addr) ([]explain.Explanation, error) {
	v, err := l.ask(cmd, agent.Ask{Service: query.Service, Address: query.Addr.Addr()})
	if err != nil {
		return nil, err
	}
	base := view.BaseOf(plainBase(), 0).JumpsOnly()
	if v != nil {
		base = v.Base
	}
	k, err := readKernel(cmd.Context())
	if err != nil {
		return nil, err
	}
	places, err := query.Places(k, v)
	if err != nil {
		return nil, err
	}
	var answers []explain.Explanation
	for _, place := range places {
		if from.IsValid() && from.Is4() != place.Addr.Addr().Is4() {
			continue
		}
		answers = append(answers, explain.Explain(k, v, base, explain.Question{To: place, From: from}))
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("--from %s is of another address family than what is asked for", from)
	}
	return answers, nil
}

// readKernel reads all that a packet may meet.
func readKernel(ctx context.Context) (*explain.Kernel, error) {
	tables, err := iptables.Detect(ctx)
	if err != nil {
		return nil, fmt.Errorf("find this node's iptables: %w", err)
	}
	var sysctls []string
	for _, s := range plainBase().Sysctls {
		sysctls = append(sysctls, s.Name)
	}
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix, Chains: compile.Chains, Sysctls: sysctls, Variant: tables.Variant, Families: tables.Families,
	})
	if err != nil {
		return nil, err
	}
	out := &explain.Kernel{}
	var errs [5]error
	out.State, errs[0] = k.Read(ctx)
	out.Rules, errs[1] = k.Rules(ctx)
	out.NodeAddresses, errs[2] = k.NodeAddresses(ctx)
	out.Connections, errs[3] = ipvs.Connections()
	errs[4] = k.Close()
	return out, errors.Join(errs[:]...)
}

// explanationList is what explain prints for programs.
type explanationList struct {
	APIVersion string                `json:"apiVersion"`
	Kind       string                `json:"kind"`
	Items      []explain.Explanation `json:"items"`
}

func (l *look) printExplanations(cmd *cobra.Command, answers []explain.Explanation) error {
	out := cmd.OutOrStdout()
	err := l.print(out, explanationList{view.Version, "ExplanationList", answers}, func() error {
		for i, a := range answers {
			if i > 0 {
				fmt.Fprintln(out)
			}
			explain.Print(out, a)
		}
		return nil
	})
	for _, a := range answers {
		if err == nil && a.Verdict == explain.Stops {
			return statusStops
		}
	}
	return err
}
