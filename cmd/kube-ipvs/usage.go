package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// statusError is the exit status of a command that has printed its own error.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// errDiffers selects plan's exit status if there is a difference.
var errDiffers = errors.New("the kernel differs from the wanted state")

// usageError reports an invalid command line.
type usageError struct {
	error
	command string
}

// addCheck adds a check of a command's flags. The check that was added last runs first. Its errors are usage errors.
func addCheck(cmd *cobra.Command, check func() error) {
	others := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return usageError{err, cmd.CommandPath()}
		}
		if others == nil {
			return nil
		}
		return others(cmd, args)
	}
}

// noSuchCommand rejects unknown subcommands. Cobra passes them to the parent command as arguments.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	unknown := fmt.Sprintf("unknown command %q", cmd.CommandPath()+" "+args[0])
	if !cmd.HasAvailableSubCommands() {
		return errors.New(unknown)
	}
	cmd.SuggestionsMinimumDistance = 2 // allow up to two typos
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("%s; did you mean %s?", unknown, strings.Join(similar, " or "))
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return fmt.Errorf("%s; use one of %s", unknown, strings.Join(names, ", "))
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q: %s takes no arguments", args[0], cmd.CommandPath())
	}
	return nil
}

func asUsageErrors(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c.HasAvailableSubCommands() && c.Flags().NArg() > 0 { // report the unknown command, not its flag
			err = noSuchCommand(c, c.Flags().Args())
		}
		return usageError{err, c.CommandPath()}
	})
	if args := cmd.Args; args != nil {
		cmd.Args = func(c *cobra.Command, given []string) error {
			if err := args(c, given); err != nil {
				if !c.HasAvailableSubCommands() {
					err = fmt.Errorf("%w; usage: %s", err, c.UseLine())
				}
				return usageError{err, c.CommandPath()}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		asUsageErrors(sub)
	}
}
