package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// planTimeout bounds the wait for an API server.
const planTimeout = 30 * time.Second

func newPlan(m *machine) *cobra.Command {
	var flags config.Flags
	var dir, output string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show the wanted kernel state, or how this node's kernel differs from it",
		Long: `plan -f DIR prints the kernel state for the manifests in DIR, as the commands that would create it.
It needs no cluster, root privileges or kernel. Node ports appear at the addresses of the Node manifest
that --hostname-override names; without that manifest there are none.

Without -f, plan reads the Services from the API server (or from --manifests) and the state of this
node's kernel, and prints the difference: what the agent would do now, in order. It changes nothing.
Its exit status is 3 if there is a difference.`,
		Example: `  kube-ipvs plan -f manifests/ --cluster-cidr 10.244.0.0/16
  kube-ipvs plan -f manifests/ -o json
  kube-ipvs plan --kubeconfig /etc/kubernetes/kube-ipvs.conf`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			if dir == "" && cmd.Flags().Changed("filename") {
				return usageError{errors.New("--filename is empty; use a directory of manifests"), cmd.CommandPath()}
			}
			loaded, err := loadFlags(cmd, &flags)
			if err != nil {
				return err
			}
			if dir != "" {
				return planDir(cmd, &loaded.Settings, dir, output)
			}
			return planNode(cmd.Context(), m, cmd.OutOrStdout(), cmd.ErrOrStderr(), &loaded.Settings, output)
		},
	}
	flags.AddRun(cmd.Flags())
	cmd.Flags().StringVarP(&dir, "filename", "f", "", "directory of Service, EndpointSlice and Node manifests")
	addOutput(cmd, &output)
	return cmd
}

// planDir prints the wanted state of manifests. Problems go to stderr; the command fails if there are any.
func planDir(cmd *cobra.Command, settings *config.Settings, dir string, output string) error {
	name, err := settings.Hostname()
	if err != nil {
		return err
	}
	cfg := compile.Config{
		Host:     compile.Host{NodeName: name, Families: inet.Families},
		Settings: settings.Compile(),
	}
	changes, err := watch.LoadDir(dir, watch.Proxy(settings.ServiceProxyName))
	if err != nil {
		return fmt.Errorf("--filename: %w", hintAt(dir, err))
	}
	var problems []model.Problem
	for _, object := range slices.SortedFunc(maps.Keys(changes.Problems), model.ObjectRef.Compare) {
		problems = append(problems, changes.Problems[object]...)
	}
	cluster := compile.NewCluster(cfg)
	// plan -f knows no listening processes, and reads no addresses from the kernel.
	facts := compile.Facts{Nodes: changes.Nodes, Services: changes.Services, Listeners: kernel.Listeners{}}
	if node := changes.Nodes[name]; node != nil {
		facts.Addresses = node.Addresses
	}
	for _, id := range cluster.Apply(facts, want.NewTouched()) {
		problems = append(problems, cluster.Problems(id)...)
	}
	if err := printState(cmd.OutOrStdout(), cluster.Want(), output); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), p)
	}
	if len(problems) > 0 {
		noun := "problems"
		if len(problems) == 1 {
			noun = "problem"
		}
		return fmt.Errorf("%d %s in %s; the plan covers everything else", len(problems), noun, dir)
	}
	return nil
}

// hintAt adds the remedy to an error of reading a directory of manifests.
func hintAt(dir string, err error) error {
	info, unseen := os.Stat(dir)
	switch {
	case unseen == nil && !info.IsDir():
		return fmt.Errorf("%w; use the directory that contains it (%s): every .yaml, .yml and .json file in it is read", err, filepath.Dir(dir))
	case unseen != nil:
		return fmt.Errorf("%w; use a directory of Service, EndpointSlice and Node manifests", err)
	}
	return err
}

func printState(w io.Writer, state *want.State, output string) error {
	if output != asText {
		return encode(w, output, inspect.AsJSON(state))
	}
	text := bufio.NewWriter(w)
	inspect.State(text, state)
	return text.Flush()
}

// errDiffers gives plan its exit status if there is a difference.
var errDiffers = errors.New("the kernel differs from the wanted state")

// sayNFTables says how to read the commands that stand for operations.
func sayNFTables(stderr io.Writer, node *daemon.Node) {
	if node.Mode.RulesInNFTables() {
		fmt.Fprintf(stderr, "kube-ipvs: sets and rules are kept in %s; they are shown as commands of ipset and iptables\n", node.Rules())
	}
}

// planNode prints the difference between this node's kernel and the wanted state.
func planNode(ctx context.Context, m *machine, stdout, stderr io.Writer, settings *config.Settings, output string) error {
	if dir := settings.Manifests; dir != "" { // fail now; an agent would wait for the directory to be mounted
		if _, err := watch.LoadDir(dir, watch.Proxy(settings.ServiceProxyName)); err != nil {
			return hintAt(dir, err)
		}
	}
	log, _, err := newLogger(stderr, "error", "text")
	if err != nil {
		return err
	}
	node, err := daemon.OpenNode(ctx, m.Machine, settings, log)
	if err != nil {
		return err
	}
	defer node.Close(log)
	sayNFTables(stderr, node)
	from, err := node.OpenSource(settings, version, log)
	if err != nil {
		return err
	}
	if err := from.AwaitSync(ctx, planTimeout); err != nil {
		return err
	}
	loop := agent.New(agent.Config{Compile: node.Config(settings)}, from.Source, node.Kernel, log)
	plan, err := loop.Plan(ctx)
	if err != nil {
		return err
	}
	if output != asText {
		err = encode(stdout, output, inspect.PlanAsJSON(plan))
	} else {
		text := bufio.NewWriter(stdout)
		inspect.Plan(text, plan)
		err = text.Flush()
	}
	if err == nil && plan.Len() > 0 {
		err = errDiffers
	}
	return err
}
