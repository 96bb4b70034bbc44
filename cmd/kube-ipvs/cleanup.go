package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/solo"
)

func newCleanup() *cobra.Command {
	var flags config.Flags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of kube-ipvs from this node",
		Long: `cleanup removes, in both families, the addresses and virtual servers that kube-ipvs made, its chains
and jumps, its ipsets, and kube-ipvs0. What others have made stays. Services stop working on this node;
connections through them end. Stop the agent first: it would put everything back.

Sysctls stay as they are, because nobody can know what they were before.`,
		Example: "  kube-ipvs cleanup --dry-run\n  kube-ipvs cleanup",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := loadFlags(cmd, &flags)
			if err != nil {
				return err
			}
			return cleanup(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &loaded.Settings, dryRun)
		},
	}
	flags.AddCompile(cmd.Flags())
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	return cmd
}

func cleanup(ctx context.Context, stdout, stderr io.Writer, settings *config.Settings, dryRun bool) error {
	log, _, err := newLogger(stderr, "error", "text")
	if err != nil {
		return err
	}
	if !dryRun {
		place, err := solo.Take()
		if err != nil {
			return fmt.Errorf("%w; stop it first, it would put everything back", err)
		}
		defer func() { _ = place.Leave() }()
	}
	node, err := openKernel(ctx, settings, log) // also where Services could not be served
	if err != nil {
		return err
	}
	defer node.close(log)
	c, err := agent.NewCleanup(ctx, node.compile, node.kernel)
	if err != nil {
		return err
	}
	elsewhere, err := node.kernel.Elsewhere(ctx)
	if err != nil {
		return err
	}
	for _, addr := range c.Foreign {
		fmt.Fprintf(stderr, "address %s on %s is not ours: it stays, and the device with it\n", addr, kernel.Device)
	}
	if c.Plan.Len() == 0 && elsewhere == nil {
		fmt.Fprintln(stdout, "there is nothing of kube-ipvs on this node")
		return nil
	}
	if elsewhere != nil {
		fmt.Fprintf(stdout, "# rules of an earlier start\n%s\n", elsewhere)
	}
	if dryRun {
		inspect.Plan(stdout, c.Plan)
		return nil
	}
	if elsewhere != nil { // they keep the sets busy
		if err := elsewhere.Remove(ctx); err != nil {
			return err
		}
	}
	return c.Run(ctx, func(op kernel.Op, err error) {
		if err != nil {
			fmt.Fprintf(stderr, "failed: %s: %v\n", op, err)
			return
		}
		fmt.Fprintln(stdout, op)
	})
}
