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

// cleaning has the flags of cleanup.
type cleaning struct {
	dryRun, keepServices bool
	output               string
}

func newCleanup(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	var how cleaning
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove all objects of kube-ipvs from this node",
		Long: `cleanup removes, in both families, the addresses and virtual servers that kube-ipvs created, its
chains and jumps, its ipsets, its nftables table, and kube-ipvs0. Objects of other programs stay.
Services stop working on this node, and connections through them end. Stop the agent first: it would
recreate everything, so cleanup refuses to run beside an agent. --dry-run prints what cleanup would
remove, and whether it would refuse.

To return to kube-proxy in ipvs mode, start kube-proxy, then run cleanup with --keep-services.
kube-proxy takes over the virtual servers, addresses and kube-ipvs0, so these stay; cleanup removes
only the chains, jumps and ipsets that kube-proxy does not know. Without this flag, cleanup refuses
to run if kube-proxy may still use the virtual servers: its port 10249 reports ipvs mode
or accepts connections but does not answer, a process is called kube-proxy, or kube-proxy has written
its rules since kube-ipvs did. If kube-proxy no longer runs, kube-proxy --cleanup removes these rules.

cleanup does not reset sysctls: their previous values are unknown.`,
		Example: "  kube-ipvs cleanup --dry-run\n  kube-ipvs cleanup\n  kube-ipvs cleanup --keep-services",
		Args:    noArguments,
		RunE: withSettings(&flags, func(cmd *cobra.Command, settings *config.Settings) error {
			return cleanup(cmd, m, settings, how)
		}),
	}
	flags.AddCompile(cmd.Flags())
	cmd.Flags().BoolVar(&how.dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	cmd.Flags().BoolVar(&how.keepServices, "keep-services", false, "keep virtual servers, addresses and kube-ipvs0 for kube-proxy")
	addOutput(cmd, &how.output)
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
		leave, refusal = func() {}, fmt.Errorf("%w; stop it first: it would recreate everything", refusal)
	}
	switch {
	case how.dryRun:
		leave()
	case refusal != nil:
		return refusal
	default:
		defer leave()
	}
	node, err := daemon.OpenAnyNode(ctx, m.Machine, settings, log) // even if this machine cannot serve Services
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
	document.Found(c.Plan, c.Foreign)
	if !how.dryRun {
		err = c.Run(ctx, document.Did)
	}
	return errors.Join(err, printAs(cmd.OutOrStdout(), how.output, document, func(io.Writer) error { return nil }))
}
