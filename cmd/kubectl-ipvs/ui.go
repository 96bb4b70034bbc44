package main

import (
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet/pods"
	"github.com/kube-ipvs/kube-ipvs/internal/ui"
)

// uiCommand is the command line that answers the page's questions in the agent's pod.
var uiCommand = []string{"kube-ipvs", "ui", "--stdio"}

func (o *options) ui() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show the nodes' Services, traffic and changes in the browser",
		Long: `ui serves a page on a loopback address of this machine and prints a link that opens it once. The page
shows one node at a time: its Services, the traffic from each address to each endpoint in the last hour, the
latency of changes, drift, problems, and the path of a packet.

When you choose a node, ui runs kube-ipvs in the agent's pod and queries it through the API server; nothing
on the node listens. Traffic is recorded only while ui runs.`,
		Example: "  kubectl ipvs ui\n  kubectl ipvs ui --node node-1 --port 8090",
		Args:    asUsageErrors(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.rules, &o.overrides).ClientConfig()
			if err != nil {
				return err
			}
			o.ask.Client = *client
			return o.serveUI(cmd.Context(), cmd.OutOrStdout(), port)
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "port on 127.0.0.1; 0 means any free port")
	return cmd
}

func (o *options) serveUI(ctx context.Context, out io.Writer, port uint16) error {
	names, err := pods.Agents(ctx, o.ask)
	if err != nil {
		return err
	}
	nodes := map[string]ui.Node{}
	for _, name := range names {
		nodes[name] = &remoteNode{ctx: ctx, ask: o.ask, name: name}
	}
	return ui.Show(ctx, out, port, names, nodes)
}

// remoteNode connects to a node when the page asks for it, and reconnects if the connection has ended.
type remoteNode struct {
	ctx  context.Context
	ask  pods.Config
	name string

	mu     sync.Mutex
	client *ui.Client
}

// Answer implements ui.Node.
func (n *remoteNode) Answer(ctx context.Context, q ui.Question) (json.RawMessage, error) {
	return n.connected().Answer(ctx, q)
}

func (n *remoteNode) connected() *ui.Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client != nil && n.client.Err() == nil {
		return n.client
	}
	in, questions := io.Pipe()
	answers, out := io.Pipe()
	ctx, stop := context.WithCancel(n.ctx)
	go func() {
		defer stop()
		err := pods.Stream(ctx, n.ask, n.name, uiCommand, in, out)
		_, _ = out.CloseWithError(err), in.CloseWithError(err) // neither returns an error
	}()
	n.client = ui.NewClient(answers, questions, pods.MaxAnswer, stop)
	return n.client
}
