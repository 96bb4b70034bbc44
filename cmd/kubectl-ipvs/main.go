// Command kubectl-ipvs queries the kube-ipvs agents of a cluster. If kubectl-ipvs is in the PATH, it runs as `kubectl
// ipvs`. The program is separate from kube-ipvs, because users run it on machines that are not Linux nodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
	"github.com/kube-ipvs/kube-ipvs/internal/fleet/pods"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

// version is set at link time.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program immediately
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// statusError is the worst exit status of the nodes.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// execute runs one command line and returns its exit status: the worst status of the nodes, 1 if a node did not
// respond, 2 for an invalid command line.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var status statusError
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	}
	fmt.Fprintln(stderr, "kubectl-ipvs:", err)
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

type usageError struct{ error }

func asUsageErrors(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// options are the flags that all commands share.
type options struct {
	rules         *clientcmd.ClientConfigLoadingRules
	overrides     clientcmd.ConfigOverrides
	allNamespaces bool
	output        string
	table         inspect.Table
	ask           pods.Config
	// agentFlags are the flags of agents that are not running yet.
	agentFlags []string
	// compare requests a comparison with kube-proxy, using the account and configuration in compareAs.
	compare   bool
	compareAs pods.Config
	// timeout is the time limit for all nodes; 0 means no limit.
	timeout time.Duration
	watch   bool
	// interval is the time between the queries of --watch.
	interval time.Duration
}

func newRoot() *cobra.Command {
	o := &options{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	root := &cobra.Command{
		Use:   "kubectl-ipvs",
		Short: "Query the kube-ipvs agents of a cluster",
		Long: `kubectl ipvs runs a kube-ipvs inspection command in the agents' pods, merges the answers, and lists the
nodes that disagree and the nodes that did not respond.

It requires the permissions to list pods and to create pods/exec in the agents' namespace. The agents'
pods are privileged, so the second permission is equivalent to root on the nodes.

If it is interrupted or reaches its timeout, it prints the answers that have arrived, with a note that
others are missing.

The exit status is the worst status of the nodes, and at least 1 if a node did not respond. status,
doctor, explain, preflight, plan and cleanup give a verdict on all nodes, so their exit status is also
at least 1 if they did not query all nodes.

preflight and cleanup can run on nodes without an agent, in temporary pods (--image).`,
		SilenceErrors: true, SilenceUsage: true, Version: version,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl ipvs"},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&o.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig file")
	clientcmd.BindOverrideFlags(&o.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "show the Services of all namespaces")
	flags.StringVarP(&o.output, "output", "o", "table", strings.Join(forms, ", "))
	flags.BoolVar(&o.table.NoHeaders, "no-headers", false, "print the table without column titles")
	flags.StringVar(&o.table.SortBy, "sort-by", "", "sort the table by this column, numbers by value")
	flags.BoolVarP(&o.watch, "watch", "w", false, "query the nodes periodically, and print what has changed")
	flags.DurationVar(&o.interval, "watch-interval", 10*time.Second, "interval between the queries of --watch, at least 1s")
	flags.DurationVar(&o.timeout, "timeout", 0, "time limit for all nodes together; 0 means no limit")
	flags.StringVar(&o.ask.Namespace, "agent-namespace", "kube-system", "namespace of the agents' pods")
	flags.StringSliceVar(&o.ask.Nodes, "node", nil, "nodes to query")
	flags.BoolVar(&o.ask.All, "all-nodes", false, fmt.Sprintf("query all nodes, even if there are more than %d", fleet.MaxNodes))
	flags.IntVar(&o.ask.Parallel, "parallel", 10, "number of nodes to query at the same time")
	flags.DurationVar(&o.ask.Timeout, "node-timeout", 30*time.Second, "time limit for each node")
	explainFlags := []string{"from", "interface"}
	preflight := o.command("preflight", "Check whether the nodes can serve Services, even before kube-ipvs is installed", nil)
	cleanup := o.command("cleanup", "Remove all objects of kube-ipvs from nodes without an agent", []string{"dry-run", "keep-services"})
	for _, flag := range []string{"dry-run", "keep-services"} {
		cleanup.Flags().Lookup(flag).NoOptDefVal = "true"
	}
	o.addTemporary(preflight)
	o.addTemporary(cleanup)
	o.addCompare(preflight)
	root.AddCommand(
		o.command("services [NAME]", "Show Services as the nodes serve them", nil),
		o.command("explain ADDRESS:PORT[/PROTOCOL] | NAME[:PORT]", "Show the nodes on which a packet to a Service does not arrive, and why", explainFlags),
		o.command("conns [NAME]", "Show the connections through the nodes' virtual servers", nil),
		o.command("top [NAME]", "Show the current load of Services, summed over the nodes", []string{"interval"}),
		o.command("status", "Show which agents are healthy", nil),
		o.command("doctor", "Diagnose the nodes and their agents", nil),
		preflight, cleanup,
		o.command("plan", "Show how the nodes' kernels differ from the wanted state", nil),
		o.command("ipvsadm", "Show the virtual servers of the nodes, as ipvsadm -Ln does", nil),
		o.history(),
		o.ui(),
		o.command("version", "Show the kube-ipvs version on each node", nil),
	)
	return root
}

// command returns a command that queries the nodes. extra lists flags that are passed to the nodes.
func (o *options) command(use, short string, extra []string) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{
		Use: use, Short: short, Args: asUsageErrors(cobra.MaximumNArgs(1)),
		Example: "  kubectl ipvs " + name + examples[name],
		RunE: func(cmd *cobra.Command, args []string) error {
			q := fleet.Question{Command: name, Name: strings.Join(args, "")}
			for _, flag := range extra {
				if value, _ := cmd.Flags().GetString(flag); value != "" {
					q.Extra = append(q.Extra, "--"+flag+"="+value)
				}
			}
			q.Extra = append(q.Extra, o.agentFlags...)
			o.takeCompare(&q)
			dryRun, _ := cmd.Flags().GetString("dry-run")
			if err := o.checkTemporary(q, dryRun == "true"); err != nil {
				return usageError{err}
			}
			if o.ask.Image != "" && !cmd.Flags().Changed("node-timeout") {
				o.ask.Timeout = temporaryTimeout
			}
			return o.run(cmd, q)
		},
	}
	for _, flag := range extra {
		cmd.Flags().String(flag, "", "same as the kube-ipvs flag "+name)
	}
	return cmd
}

func (o *options) history() *cobra.Command {
	cmd := o.command("history", "Show what the agents changed, repaired and failed to do, and why", []string{"since", "service", "repairs", "failed", "limit"})
	for _, flag := range []string{"repairs", "failed"} {
		cmd.Flags().Lookup(flag).NoOptDefVal = "true"
	}
	return cmd
}

var examples = map[string]string{
	"services":  " -n shop\n  kubectl ipvs services -n shop web",
	"explain":   " -n shop web:http --from 10.244.1.7",
	"conns":     " -n shop web --node node-1",
	"top":       " -A --all-nodes\n  kubectl ipvs top -n shop --sort-by active --watch",
	"status":    " --all-nodes --watch",
	"preflight": " --all-nodes\n  kubectl ipvs preflight --all-nodes --image registry.example/kube-ipvs/kube-ipvs:v0.1.0",
	"cleanup":   " --all-nodes --image registry.example/kube-ipvs/kube-ipvs:v0.1.0 --dry-run",
	"doctor":    " --all-nodes\n  kubectl ipvs doctor --all-nodes -o name",
	"history":   " --since 10m --failed --repairs",
}
