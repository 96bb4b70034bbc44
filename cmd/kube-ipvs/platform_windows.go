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

// commandsOfHost returns the commands that read or write the kernel. There are none on Windows.
func commandsOfHost(*host) []*cobra.Command { return nil }

func cleanUp(*cobra.Command, *host, *config.Settings) error { return daemon.ErrNotHere }

func initialize(*cobra.Command, *host, *config.Settings) error { return daemon.ErrNotHere }
