// Command kubectl-ipvs asks the kube-ipvs agents of a cluster. As kubectl-ipvs in the PATH, it is the command `kubectl ipvs`. It is a separate
// program, because users run it on machines other than Linux nodes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
	"github.com/kube-ipvs/kube-ipvs/internal/fleet/pods"
)

// version is set at link time.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// statusError is the exit status of the nodes.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// execute returns the exit status: the worst of the nodes, 1 if a node did not respond, 2 for an invalid command line.
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

// usageError is an invalid command line.
type usageError struct{ error }

// options are the flags of all commands.
type options struct {
	rules         *clientcmd.ClientConfigLoadingRules
	overrides     clientcmd.ConfigOverrides
	allNamespaces bool
	output        string
	ask           pods.Config
}

func newRoot() *cobra.Command {
	o := &options{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	root := &cobra.Command{
		Use:   "kubectl-ipvs",
		Short: "Ask the kube-ipvs agents of a cluster",
		Long: `kubectl ipvs runs an inspection command of kube-ipvs in the agents' pods, merges the answers,
and lists the nodes that disagree and those that did not respond.

It needs the rights to list pods and to create pods/exec in the agents' namespace. The agents' pods are
privileged: this right equals root on the nodes.

The exit status is the worst of the nodes, and at least 1 if a node did not respond. status, doctor and
explain also exit with at least 1 if nodes were not asked because there are too many.`,
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
	flags.StringVar(&o.ask.Namespace, "agent-namespace", "kube-system", "namespace of the agents' pods")
	flags.StringSliceVar(&o.ask.Nodes, "node", nil, "nodes to ask")
	flags.BoolVar(&o.ask.All, "all-nodes", false, fmt.Sprintf("ask all nodes, even if there are more than %d", fleet.MaxNodes))
	flags.IntVar(&o.ask.Parallel, "parallel", 10, "number of nodes to ask at the same time")
	flags.DurationVar(&o.ask.Timeout, "node-timeout", 30*time.Second, "how long a node may take")
	explainFlags := []string{"from", "interface"}
	root.AddCommand(
		o.command("services [NAME]", "Show Services as the nodes serve them", nil),
		o.command("explain ADDRESS:PORT[/PROTOCOL] | NAME[:PORT]", "Show on which nodes a packet to a Service does not arrive, and why", explainFlags),
		o.command("conns [NAME]", "Show the connections through the nodes' virtual servers", nil),
		o.command("status", "Show which agents are well", nil),
		o.command("doctor", "Examine the nodes and their agents", nil),
	)
	return root
}

var forms = []string{"table", "json", "yaml"}

// command returns a command that asks the nodes. extra are flags that go to the nodes.
func (o *options) command(use, short string, extra []string) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.MaximumNArgs(1),
		Example: "  kubectl ipvs " + name + examples[name],
		RunE: func(cmd *cobra.Command, args []string) error {
			q := fleet.Question{Command: name, Name: strings.Join(args, "")}
			for _, flag := range extra {
				if value, _ := cmd.Flags().GetString(flag); value != "" {
					q.Extra = append(q.Extra, "--"+flag+"="+value)
				}
			}
			return o.run(cmd, q)
		},
	}
	args := cmd.Args
	cmd.Args = func(cmd *cobra.Command, given []string) error {
		if err := args(cmd, given); err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, flag := range extra {
		cmd.Flags().String(flag, "", "as the flag of kube-ipvs "+name)
	}
	return cmd
}

var examples = map[string]string{
	"services": " -n shop\n  kubectl ipvs services -n shop web",
	"explain":  " -n shop web:http --from 10.244.1.7",
	"conns":    " -n shop web --node node-1",
	"doctor":   " --all-nodes -o json",
}

func (o *options) run(cmd *cobra.Command, q fleet.Question) error {
	if !slices.Contains(forms, o.output) {
		return usageError{fmt.Errorf("--output %q: use one of %s", o.output, strings.Join(forms, ", "))}
	}
	if o.ask.All && len(o.ask.Nodes) > 0 {
		return usageError{errors.New("use either --node or --all-nodes")}
	}
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.rules, &o.overrides)
	if !o.allNamespaces {
		namespace, _, err := config.Namespace()
		if err != nil {
			return err
		}
		q.Namespace = namespace
	}
	if _, err := q.Line(); err != nil {
		return usageError{err}
	}
	client, err := config.ClientConfig()
	if err != nil {
		return err
	}
	o.ask.Client = *client
	answers, left, err := pods.Ask(cmd.Context(), o.ask, q)
	if err != nil {
		return err
	}
	report := fleet.Merge(q, answers, left)
	if err := print(cmd.OutOrStdout(), o.output, report); err != nil {
		return err
	}
	if report.ExitStatus != 0 {
		return statusError(report.ExitStatus)
	}
	return nil
}

func print(w io.Writer, form string, report fleet.Report) error {
	if form == "table" {
		return fleet.Print(w, report)
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err == nil && form == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", strings.TrimSuffix(string(text), "\n"))
	return err
}
