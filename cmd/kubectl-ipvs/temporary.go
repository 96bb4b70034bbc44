package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

// temporaryTimeout is the default time limit for a node, including the time to pull an image.
const temporaryTimeout = 2 * time.Minute

// addTemporary adds the flags for pods that exist only while the command runs.
func (o *options) addTemporary(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.ask.Image, "image", "", "run the command in a temporary pod with this image on each node, instead of in the agent's pod; "+
		"--node-timeout then defaults to 2m")
	flags.StringVar(&o.ask.PullSecret, "image-pull-secret", "", "Secret in the agents' namespace for pulling the image")
	flags.StringArrayVar(&o.agentFlags, "agent-flag", nil, "with --image: flag that the agents will use, such as --agent-flag=--data-plane=nftables; can be repeated")
}

func (o *options) addCompare(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.compare, "compare", false, "with --image: also list for each Service what clients would notice if agents took over from kube-proxy in ipvs mode")
	flags.StringVar(&o.compareAs.Account, "service-account", "kube-proxy", "with --compare: ServiceAccount of the temporary pods; it needs the permissions of kube-proxy")
	flags.StringVar(&o.compareAs.KubeProxy, "kube-proxy-config", "kube-proxy",
		"with --compare: ConfigMap with kube-proxy's configuration in the key config.conf; empty for the agent's defaults")
}

func (o *options) takeCompare(q *fleet.Question) {
	if o.compare {
		q.Extra = append(q.Extra, "--compare")
		o.ask.Account, o.ask.KubeProxy = o.compareAs.Account, o.compareAs.KubeProxy
	}
}

func (o *options) checkTemporary(q fleet.Question, dryRun bool) error {
	switch {
	case o.ask.Image == "" && (o.ask.PullSecret != "" || len(o.agentFlags) > 0):
		return errors.New("--image-pull-secret and --agent-flag need --image")
	case o.ask.Image == "" && o.compare:
		return errors.New("--compare needs --image; if agents already run, use kubectl ipvs plan")
	case o.ask.Image != "" && o.watch:
		return errors.New("--watch would create new pods for every query; use it without --image")
	case q.Command != "cleanup":
	case o.ask.Image == "":
		return errors.New("cleanup needs --image: it refuses to run beside an agent, so it runs in temporary pods")
	case !dryRun && !o.ask.All && len(o.ask.Nodes) == 0:
		return errors.New("cleanup ends all connections to Services through a node; name the nodes with --node, or use --all-nodes or --dry-run")
	}
	return nil
}
