package main

import (
	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

// host is the machine as commands see it.
type host = machine.Machine

func thisHost() *host { return machine.This() }

// commandsOfHost returns the commands that read or write the kernel.
func commandsOfHost(m *host) []*cobra.Command {
	return []*cobra.Command{
		newPlan(m), newPreflight(m), newDoctor(m), newIPVSADM(m), newCleanup(m), newServices(m), newConns(m), newTop(m), newFlows(m),
		newHistory(), newUI(m), newStatus(m), newExplain(m), newBundle(m, execute),
	}
}

func cleanUp(cmd *cobra.Command, m *host, settings *config.Settings) error {
	return cleaning{inspection: inspection{output: asText}}.run(cmd, m, settings)
}

func initialize(cmd *cobra.Command, m *host, settings *config.Settings) error {
	log, _, err := daemon.NewLogger(cmd.ErrOrStderr(), settings.LogLevel, settings.LogFormat)
	if err != nil {
		return err
	}
	return daemon.SetSysctls(cmd.Context(), m.Machine, settings, log)
}
