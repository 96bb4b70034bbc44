package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

// temporaryTimeout is how long a node may take by default, with the time for pulling an image.
const temporaryTimeout = 2 * time.Minute

// addTemporary adds the flags for pods that exist only while the command runs.
func (o *options) addTemporary(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.ask.Image, "image", "", "run the command in a temporary pod of this image on each node, instead of in the agent's pod; "+
		"--node-timeout is then 2m by default")
	flags.StringVar(&o.ask.PullSecret, "image-pull-secret", "", "Secret in the agents' namespace for pulling the image")
	flags.StringArrayVar(&o.agentFlags, "agent-flag", nil, "with --image: flag of the agents that will run, such as --agent-flag=--data-plane=nftables; can be repeated")
}

// checkTemporary returns what is wrong with these flags.
func (o *options) checkTemporary(q fleet.Question, dryRun bool) error {
	switch {
	case o.ask.Image == "" && (o.ask.PullSecret != "" || len(o.agentFlags) > 0):
		return errors.New("--image-pull-secret and --agent-flag need --image")
	case o.ask.Image != "" && o.watch:
		return errors.New("--watch would create pods again and again; use it without --image")
	case q.Command != "cleanup":
	case o.ask.Image == "":
		return errors.New("cleanup needs --image: it refuses to run beside an agent, so it runs in temporary pods")
	case !dryRun && !o.ask.All && len(o.ask.Nodes) == 0:
		return errors.New("cleanup ends all connections through Services of a node; name the nodes with --node, or use --all-nodes or --dry-run")
	}
	return nil
}
