package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

type cleaning struct {
	dryRun, keepServices, leftovers bool
	inspection
}

func newCleanup(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	how := cleaning{inspection: inspection{forms: textForms}}
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove all kube-ipvs objects from this node",
		Long: `cleanup removes, in both families, the addresses and virtual servers that kube-ipvs created, its
chains and jumps, its ipsets, its nftables table, and kube-ipvs0. Other programs' objects stay.
Services stop working on this node, and connections through them end. Stop the agent first: cleanup
refuses to run while an agent runs, because the agent would recreate everything. --dry-run prints
what cleanup would remove, and whether it would refuse.

To return to kube-proxy in ipvs mode, start kube-proxy, then run cleanup with --keep-services.
kube-proxy takes over the virtual servers, addresses and kube-ipvs0, so these stay; cleanup removes
only the chains, jumps and ipsets that kube-proxy does not use. Without this flag, cleanup refuses
to run if kube-proxy might still be using the virtual servers: its port 10249 reports ipvs mode or
accepts connections but does not answer, a process is named kube-proxy, or kube-proxy wrote its
rules after kube-ipvs did.

With --kube-proxy-leftovers, cleanup instead removes the objects that kube-proxy has left behind on this
node, in any of its modes: chains and jumps in both variants of iptables, ipsets, and nftables tables.
The kubelet's chains stay, and so do objects that another program's rule uses. Virtual servers and
addresses also stay: the agent has adopted the ones that Services use. cleanup lists the rest, which may
belong to another program. Run this command while the agent is running. cleanup refuses to run if
no agent has completed a sync, or if it finds signs of a running kube-proxy: its process, its health port
10256, or rules that it has just written.

cleanup does not reset sysctls: their previous values are unknown.`,
		Example: "  kube-ipvs cleanup --dry-run\n  kube-ipvs cleanup\n  kube-ipvs cleanup --keep-services\n" +
			"  kube-ipvs cleanup --kube-proxy-leftovers --dry-run",
		Args: noArguments,
		RunE: withSettings(&flags, func(cmd *cobra.Command, settings *config.Settings) error {
			if how.leftovers {
				return cleanLeftovers(cmd, m, settings, how)
			}
			return cleanup(cmd, m, settings, how)
		}),
	}
	flags.AddCompile(cmd.Flags())
	cmd.Flags().BoolVar(&how.dryRun, "dry-run", false, "print what would be removed, but remove nothing")
	cmd.Flags().BoolVar(&how.keepServices, "keep-services", false, "keep virtual servers, addresses and kube-ipvs0 for kube-proxy")
	cmd.Flags().BoolVar(&how.leftovers, "kube-proxy-leftovers", false, "remove only what kube-proxy has left behind")
	how.addFlags(cmd)
	addCheck(cmd, func() error {
		if how.keepServices && how.leftovers {
			return errors.New("use either --keep-services or --kube-proxy-leftovers")
		}
		return nil
	})
	return cmd
}

func cleanup(cmd *cobra.Command, m *machine.Machine, settings *config.Settings, how cleaning) error {
	ctx := cmd.Context()
	log, _, err := newLogger(cmd.ErrOrStderr(), "error", "text")
	if err != nil {
		return err
	}
	leave, refusal := m.TryLock() // keeps agents from starting
	if refusal != nil {
		leave, refusal = func() {}, fmt.Errorf("%w; stop it first, because it would recreate everything", refusal)
	}
	switch {
	case how.dryRun:
		leave()
	case refusal != nil:
		return refusal
	default:
		defer leave()
	}
	node, err := daemon.OpenAnyNode(ctx, m.Machine, settings, log) // also opens a machine that cannot serve Services
	if err != nil {
		return err
	}
	defer node.Close(log)
	sayNFTables(cmd, node)
	c, err := agent.NewCleanup(ctx, node.Config(settings), node.Kernel)
	if err != nil {
		return err
	}
	if how.keepServices {
		c.KeepServices()
	}
	if refusal == nil && !how.keepServices {
		refusal = m.BesideKubeProxy(ctx, c.KubeProxyRules)
	}
	return how.finish(cmd, c, refusal, func(d *inspect.Cleanup) { d.Found(c.Plan, c.Foreign) })
}

// cleanLeftovers removes what kube-proxy has left behind. It does not acquire the node lock, which the running agent
// holds.
func cleanLeftovers(cmd *cobra.Command, m *machine.Machine, settings *config.Settings, how cleaning) error {
	ctx := cmd.Context()
	log, _, err := newLogger(cmd.ErrOrStderr(), "error", "text")
	if err != nil {
		return err
	}
	v, silence, err := how.askWhy(cmd, agent.Query{})
	if err != nil {
		return err
	}
	if v != nil { // the owner records are in the agent's rule layer
		settings.DataPlane, settings.Rules = v.Node.Mode.DataPlane(), v.Node.Mode.Rules()
	}
	node, err := daemon.OpenAnyNode(ctx, m.Machine, settings, log)
	if err != nil {
		return err
	}
	defer node.Close(log)
	c, err := agent.NewLeftoverCleanup(ctx, node.Config(settings), node.Kernel)
	if err != nil {
		return err
	}
	return how.finish(cmd, c, m.MayRemoveLeftovers(ctx, v, silence, c.KubeProxyRules), func(d *inspect.Cleanup) {
		d.FoundLeftovers(c.Plan, c.Foreign, c.ForeignServers, c.Kept)
	})
}

// finish prints what was found, and removes it unless this is a dry run or cleanup must refuse to run.
func (how cleaning) finish(cmd *cobra.Command, c *agent.Cleanup, refusal error, found func(*inspect.Cleanup)) error {
	if refusal != nil && !how.dryRun {
		return refusal
	}
	out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if how.output != asText {
		out, notes = io.Discard, io.Discard
	}
	document := inspect.NewCleanup(how.dryRun, out, notes)
	if refusal != nil {
		document.Refuse(refusal)
	}
	found(document)
	var err error
	if !how.dryRun {
		err = c.Run(cmd.Context(), document.Did)
	}
	return errors.Join(err, printAs(cmd.OutOrStdout(), how.output, document, func(io.Writer) error { return nil }))
}
