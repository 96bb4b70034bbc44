//go:build linux

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// inspection contains the flags that all inspection commands share: the status socket and the output format.
type inspection struct {
	socket, output string
	forms          []string // output formats; the first is the default
}

func (l *inspection) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.socket, "status-socket", config.StatusSocket, "status socket of this node's agent")
	addForms(cmd, &l.output, l.forms)
	addCheck(cmd, func() error {
		if l.socket == "" {
			return errors.New("--status-socket is empty; use the socket of the agent, such as " + config.StatusSocket)
		}
		return nil
	})
}

// ask queries the agent. If the agent does not respond, or responds only to root, ask prints a note and returns nil:
// the command can still show the kernel state.
func (l *inspection) ask(cmd *cobra.Command, ask agent.Query) (*view.View, error) {
	v, silence, err := status.Ask(cmd.Context(), l.socket, ask)
	if silence != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "%v; showing only the kernel state\n", silence)
	}
	noteMissing(cmd, v)
	return v, err
}

func noteMissing(cmd *cobra.Command, v *view.View) {
	for _, what := range v.Missing() {
		fmt.Fprintf(cmd.ErrOrStderr(), "unknown: %s\n", what)
	}
}

// withSettings passes the settings from the command's flags to run. Invalid settings are usage errors.
func withSettings(flags *config.Flags, run func(*cobra.Command, *config.Settings) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		loaded, err := flags.Load()
		if err != nil {
			return usageError{err, cmd.CommandPath()}
		}
		printWarnings(cmd, loaded)
		return run(cmd, &loaded.Settings)
	}
}
