//go:build linux

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/ui"
	"github.com/kube-ipvs/kube-ipvs/internal/ui/node"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func newUI(m *machine.Machine) *cobra.Command {
	u := uiCommand{machine: m}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show this node's Services, traffic and changes in the browser",
		Long: `ui serves a page on a loopback address and prints a link that opens it. The page shows the Services, the
traffic from each address to each endpoint in the last hour, the latency of changes, drift, problems, and
the path of a packet as explain sees it. It changes nothing.

The link contains a token that can be used once, so nobody else on this machine can open the page. Traffic
is recorded only while ui runs.

If the node is remote, forward a port: run ui with --port 8090, connect with ssh -L 8090:127.0.0.1:8090 NODE,
and open the link on your machine. kubectl ipvs ui needs no access to the node.

The page can also run doctor. Without an agent, doctor uses the flags below.`,
		Example: "  kube-ipvs ui\n  kube-ipvs ui --port 8090",
		Args:    noArguments,
	}
	cmd.RunE = withSettings(&u.flags, func(cmd *cobra.Command, settings *config.Settings) error {
		u.settings = settings
		return u.run(cmd)
	})
	cmd.Flags().Uint16Var(&u.port, "port", 0, "port on 127.0.0.1; 0 means any free port")
	cmd.Flags().BoolVar(&u.stdio, "stdio", false, "read requests from stdin and answer on stdout, for kubectl ipvs ui")
	_ = cmd.Flags().MarkHidden("stdio")
	cmd.Flags().StringVar(&u.socket, "status-socket", config.StatusSocket, "status socket of this node's agent")
	u.flags.AddCompile(cmd.Flags())
	return cmd
}

// uiCommand answers the page's questions as the other inspection commands do.
type uiCommand struct {
	machine  *machine.Machine
	socket   string
	port     uint16
	stdio    bool
	flags    config.Flags
	settings *config.Settings
}

func (u *uiCommand) run(cmd *cobra.Command) error {
	n := node.New(node.Sources{View: u.view, Services: u.services, Counts: u.counts, Explain: u.explain, Doctor: u.doctor})
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	go n.Run(ctx)
	if u.stdio {
		return ui.Serve(ctx, cmd.InOrStdin(), cmd.OutOrStdout(), n)
	}
	name, err := u.settings.Hostname()
	if err != nil {
		return err
	}
	return ui.Show(ctx, cmd.OutOrStdout(), u.port, []string{name}, map[string]ui.Node{name: n})
}

func (u *uiCommand) view(ctx context.Context, service string) (*view.View, string, error) {
	ask := agent.Query{All: true, History: true}
	if service != "" {
		id, err := explain.ParseServiceID(service)
		if err != nil {
			return nil, "", err
		}
		ask = agent.Query{Service: id}
	}
	return u.ask(ctx, ask)
}

func (u *uiCommand) ask(ctx context.Context, ask agent.Query) (*view.View, string, error) {
	v, silence, err := status.Ask(ctx, u.socket, ask)
	if silence != nil {
		return nil, silence.Error(), nil
	}
	return v, "", err
}

func (u *uiCommand) services(ctx context.Context, v *view.View) (inspect.ServiceList, error) {
	list, _, err := u.machine.Services(ctx, u.socket, v, "")
	return list, err
}

func (u *uiCommand) counts(ctx context.Context) (inspect.Counts, error) {
	return u.machine.CountsOf(ctx, u.socket)
}

func (u *uiCommand) explain(ctx context.Context, to, from string) ([]explain.Explanation, error) {
	query, err := explain.ParseQuery(to)
	if err != nil {
		return nil, err
	}
	client, err := explain.ParseClient(from)
	if err != nil {
		return nil, err
	}
	v, _, err := u.ask(ctx, viewFor(query))
	if err != nil {
		return nil, err
	}
	return u.machine.Explain(ctx, query, client, v)
}

func (u *uiCommand) doctor(ctx context.Context) (doctor.Report, error) {
	a, err := machine.AskSample(ctx, u.socket)
	if err != nil {
		return doctor.Report{}, err
	}
	return doctor.Examine(u.machine.Facts(ctx, a, u.settings, true)), nil
}
