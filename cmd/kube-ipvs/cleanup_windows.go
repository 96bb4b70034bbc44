package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/iphelper"
)

func newCleanup() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove the addresses of Services from this machine",
		Long: `cleanup removes the addresses that an agent with --forward-addresses=services has added to the loopback
interface and has not removed, because it was killed. Other programs' addresses stay. cleanup requires an
administrator, and refuses to run while such an agent runs.`,
		Example: "  kube-ipvs cleanup --dry-run\n  kube-ipvs cleanup",
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return removeAddresses(cmd.OutOrStdout(), dryRun) },
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be removed, but remove nothing")
	return cmd
}

func removeAddresses(out io.Writer, dryRun bool) error {
	holder, err := iphelper.Open()
	if err != nil {
		return err
	}
	defer func() { _ = holder.Close() }()
	ours, err := holder.Ours()
	if err != nil {
		return err
	}
	done, failed := "would remove", map[netip.Addr]error{}
	if !dryRun {
		done = "removed"
		if failed, err = holder.Keep(nil); err != nil {
			return err
		}
	}
	for _, a := range ours {
		if failed[a] == nil {
			fmt.Fprintf(out, "%s the address %s\n", done, a)
		}
	}
	return errors.Join(slices.Collect(maps.Values(failed))...)
}
