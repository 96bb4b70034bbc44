package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

var shells = map[string]func(*cobra.Command, io.Writer) error{
	"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"zsh":  func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) },
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
}

func newCompletion() *cobra.Command {
	names := slices.Sorted(maps.Keys(shells))
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell completion script",
		Long:  "completion prints the completion script for a shell. The examples show where to put it.",
		Example: `  kube-ipvs completion bash > /etc/bash_completion.d/kube-ipvs
  kube-ipvs completion zsh > "${fpath[1]}/_kube-ipvs"
  kube-ipvs completion fish > ~/.config/fish/completions/kube-ipvs.fish`,
		Args:      cobra.ExactArgs(1),
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			script := shells[args[0]]
			if script == nil {
				return usageError{fmt.Errorf("%q: use one of %s", args[0], strings.Join(names, ", ")), cmd.CommandPath()}
			}
			return script(cmd.Root(), cmd.OutOrStdout())
		},
	}
}
