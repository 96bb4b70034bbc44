// Command kube-ipvs serves Kubernetes Services on a node with the kernel's IP Virtual Server.
//
// This package parses flags and prints results, with one file per subcommand. Everything else is in internal/. On
// Windows, there are only the commands that need no kernel (platform_windows.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(execute(ctx, thisHost(), arguments(os.Args), os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit status: 0 for success, 1 for failure, 2 for an invalid command
// line, or the verdict of plan, explain, status or doctor.
func execute(ctx context.Context, m *host, args []string, stdout, stderr io.Writer) int {
	root := newRoot(m)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var status statusError
	if errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintln(stderr, "kube-ipvs:", err)
	if errors.Is(err, errDiffers) {
		return 3
	}
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "See '%s --help'.\n", usage.command)
		return 2
	}
	return 1
}

func newRoot(m *host) *cobra.Command {
	root := &cobra.Command{
		Use:   "kube-ipvs",
		Short: "Serve Kubernetes Services with the kernel's IP Virtual Server",
		Long: `kube-ipvs runs on every node of a Kubernetes cluster and serves its Services with the kernel's
IP Virtual Server (IPVS): virtual servers on a dummy interface, real servers in masquerading
mode, and a small constant number of iptables rules that match ipsets.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              noSuchCommand,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Version:           buildVersion().String(),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newRun(m), newVersion(), newConfig(), newCompletion())
	root.AddCommand(commandsOfHost(m)...)
	asUsageErrors(root)
	checkHelp(root)
	return root
}

// checkHelp makes the help command fail for an unknown command.
func checkHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Short, help.Long, help.Example = "Print the description, flags and examples of a command", "", "  kube-ipvs help config view"
	help.Args = func(_ *cobra.Command, args []string) error {
		found, rest, err := root.Find(args)
		if err == nil {
			err = noSuchCommand(found, rest)
		}
		if err != nil {
			return usageError{err, found.CommandPath()}
		}
		return nil
	}
}
