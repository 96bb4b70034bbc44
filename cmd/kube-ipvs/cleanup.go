package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
)

// cleaning holds the flags of cleanup.
type cleaning struct {
	dryRun, keepServices bool
	output               string
}

func newCleanup(m *machine) *cobra.Command {
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
to run if kube-proxy may still use the virtual servers: it says so on port 10249, that port accepts
connections but does not answer, a process is called kube-proxy, or kube-proxy has written its rules
since kube-ipvs did. If kube-proxy no longer runs, kube-proxy --cleanup removes these rules.

cleanup does not reset sysctls: their previous values are unknown.`,
		Example: "  kube-ipvs cleanup --dry-run\n  kube-ipvs cleanup\n  kube-ipvs cleanup --keep-services",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, how.output); err != nil {
				return err
			}
			loaded, err := loadFlags(cmd, &flags)
			if err != nil {
				return err
			}
			return cleanup(cmd, m, &loaded.Settings, how)
		},
	}
	flags.AddCompile(cmd.Flags())
	cmd.Flags().BoolVar(&how.dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	cmd.Flags().BoolVar(&how.keepServices, "keep-services", false, "keep virtual servers, addresses and kube-ipvs0 for kube-proxy")
	addOutput(cmd, &how.output)
	return cmd
}

func cleanup(cmd *cobra.Command, m *machine, settings *config.Settings, how cleaning) error {
	ctx := cmd.Context()
	log, _, err := newLogger(cmd.ErrOrStderr(), "error", "text")
	if err != nil {
		return err
	}
	leave, refusal := claim(m)
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
	sayNFTables(cmd.ErrOrStderr(), node)
	c, err := agent.NewCleanup(ctx, node.Config(settings), node.Kernel)
	if err != nil {
		return err
	}
	if how.keepServices {
		c.KeepServices()
	}
	if refusal == nil && !how.keepServices {
		refusal = m.besideKubeProxy(ctx, c.KubeProxyRules)
	}
	if refusal != nil && !how.dryRun {
		return refusal
	}
	tell := newCleanupPrinter(cmd, how)
	if refusal != nil {
		tell.refused(refusal)
	}
	err = remove(ctx, c, tell)
	return errors.Join(err, tell.end())
}

// claim keeps agents from starting until leave is called. It fails if an agent is running.
func claim(m *machine) (leave func(), err error) {
	if leave, err = m.lock(); err != nil {
		return func() {}, fmt.Errorf("%w; stop it first: it would recreate everything", err)
	}
	return leave, nil
}

// remove prints what cleanup found, and removes it unless this is a dry run.
func remove(ctx context.Context, c *agent.Cleanup, tell *cleanupPrinter) error {
	tell.found(c)
	if tell.DryRun {
		return nil
	}
	return c.Run(ctx, tell.removed)
}
