//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

type flowCommand struct {
	machine *machine.Machine
	list    listFlags
	event   string
	limit   int
	cmd     *cobra.Command
	args    []string

	names   inspect.FlowNames
	asked   time.Time // when the agent was asked for the names
	printed int
	out     *bufio.Writer
}

func newFlows(m *machine.Machine) *cobra.Command {
	f := flowCommand{machine: m, list: listFlags{inspection: inspection{forms: []string{asTable, asJSON}}}}
	cmd := &cobra.Command{
		Use:   "flows [NAMESPACE/NAME | NAME -n NAMESPACE]",
		Short: "Show connections to Services as they begin and end",
		Long: `flows prints a line whenever a connection to a Service of this node begins (NEW) or ends (ENDED): the
client with the name of its pod, the Service, and the endpoint with the name of its pod. It runs until you
interrupt it. With -o json, each line is a JSON document.

The events come from connection tracking in the kernel, which sends them only while the command runs. ENDED
lines show the duration and the traffic of the connection if the sysctls nf_conntrack_timestamp and
nf_conntrack_acct are 1. If events arrive faster than flows can print them, some are lost, and flows prints a
line with the event LOST. flows shows the name of a client's pod only if the pod is an endpoint of a Service.`,
		Example: "  kube-ipvs flows\n  kube-ipvs flows -n shop --event ended\n  kube-ipvs flows shop/cart -o json --limit 100",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := m.InProcess(); err != nil {
				return fmt.Errorf("%w, so connection tracking does not know the endpoints; run `kube-ipvs conns` to see open connections", err)
			}
			f.cmd, f.args, f.out = cmd, args, bufio.NewWriter(cmd.OutOrStdout())
			return f.run()
		},
	}
	f.list.addFlags(cmd)
	cmd.Flags().StringVar(&f.event, "event", "", "show only this event: new or ended")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "exit after this number of lines; 0 for no limit")
	_ = cmd.Flags().MarkHidden("sort-by") // a stream is always in chronological order
	addCheck(cmd, func() error {
		switch {
		case f.event != "" && f.event != "new" && f.event != "ended":
			return fmt.Errorf("--event %q: use new or ended", f.event)
		case f.limit < 0:
			return fmt.Errorf("--limit %d: use 0 or more", f.limit)
		case f.list.sortBy != "":
			return errors.New("--sort-by: the lines are always in chronological order")
		}
		return nil
	})
	return cmd
}

func (f *flowCommand) run() error {
	if err := f.learn(true); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(f.cmd.Context())
	defer stop()
	if f.list.output == asTable && !f.list.headless {
		fmt.Fprintln(f.out, inspect.FlowTitles())
	}
	print := func(e view.FlowEvent) {
		if f.limit > 0 && f.printed == f.limit {
			return
		}
		f.printed++
		if f.print(e) != nil || f.limit > 0 && f.printed == f.limit { // the output is closed, or the limit is reached
			stop()
		}
	}
	lost := func() { print(view.FlowEvent{Time: time.Now(), Event: view.FlowsLost}) }
	take := func(e kernel.FlowEvent) {
		if f.event != "" && e.Ended != (f.event == "ended") {
			return
		}
		if time.Since(f.asked) >= askAgain {
			_ = f.learn(false) // earlier names are better than none
		}
		if event, is := f.names.Event(e); is {
			print(event)
		}
	}
	err := f.out.Flush()
	if err == nil {
		err = f.machine.Flows(ctx, take, lost)
	}
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w; run the command as root", err)
	}
	return err
}

// learn asks the agent for the names of Services and pods.
func (f *flowCommand) learn(first bool) error {
	f.asked = time.Now()
	query, err := f.list.query(f.cmd, f.args)
	if err != nil {
		return err
	}
	v, silence, err := status.Ask(f.cmd.Context(), f.list.socket, agent.Query{All: true})
	switch {
	case err != nil:
		return err
	case v == nil:
		return fmt.Errorf("only the agent knows which addresses belong to Services: %w", silence)
	}
	var services []view.Service
	for _, s := range v.Services {
		if (query.All || s.ID() == query.Service.String()) && (f.list.namespace == "" || s.Namespace == f.list.namespace) {
			services = append(services, s)
		}
	}
	if first && len(services) == 0 && !query.All {
		return fmt.Errorf("this node serves no Service %s", query.Service)
	}
	f.names = inspect.FlowNamesOf(services, v.Services)
	return nil
}

func (f *flowCommand) print(e view.FlowEvent) error {
	if f.list.output == asJSON {
		return errors.Join(json.NewEncoder(f.out).Encode(e), f.out.Flush())
	}
	_, err := io.WriteString(f.out, inspect.FlowLine(e)+"\n")
	return errors.Join(err, f.out.Flush())
}
