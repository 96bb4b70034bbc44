package main

import (
	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
)

// host is the machine as commands see it.
type host struct{ daemon.Machine }

func thisHost() *host { return &host{} }

func arguments(argv []string) []string { return argv[1:] }

// commandsOfHost returns the commands that read or write the system.
func commandsOfHost(*host) []*cobra.Command { return []*cobra.Command{newCleanup()} }

func cleanUp(cmd *cobra.Command, _ *host, _ *config.Settings) error {
	return removeAddresses(cmd.OutOrStdout(), false)
}

func initialize(*cobra.Command, *host, *config.Settings) error { return daemon.ErrNotHere }
