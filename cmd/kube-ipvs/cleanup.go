//go:build linux

package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

type cleaning struct {
	machine.Cleaning
	leftovers bool
	inspection
}

func newCleanup(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	how := cleaning{inspection: inspection{forms: textForms}}
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove all kube-ipvs objects from this node",
		Long: `cleanup removes, in both families, the addresses and virtual servers that kube-ipvs created, its
chains and jumps, its ipsets, its nftables table, and kube-ipvs0, including one that a killed agent in
user space left behind. Other programs' objects stay.
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

cleanup removes the node ports that the agent has added to the sysctl
net.ipv4.ip_local_reserved_ports. It does not reset other sysctls: their previous values are
unknown.`,
		Example: "  kube-ipvs cleanup --dry-run\n  kube-ipvs cleanup\n  kube-ipvs cleanup --keep-services\n" +
			"  kube-ipvs cleanup --kube-proxy-leftovers --dry-run",
		Args: noArguments,
		RunE: withSettings(&flags, func(cmd *cobra.Command, settings *config.Settings) error {
			return how.run(cmd, m, settings)
		}),
	}
	flags.AddCompile(cmd.Flags())
	cmd.Flags().BoolVar(&how.DryRun, "dry-run", false, "print what would be removed, but remove nothing")
	cmd.Flags().BoolVar(&how.KeepServices, "keep-services", false, "keep virtual servers, addresses and kube-ipvs0 for kube-proxy")
	cmd.Flags().BoolVar(&how.leftovers, "kube-proxy-leftovers", false, "remove only what kube-proxy has left behind")
	how.addFlags(cmd)
	addCheck(cmd, func() error {
		if how.KeepServices && how.leftovers {
			return errors.New("use either --keep-services or --kube-proxy-leftovers")
		}
		return nil
	})
	return cmd
}

func (how cleaning) run(cmd *cobra.Command, m *machine.Machine, settings *config.Settings) error {
	log := daemon.ErrorLog(cmd.ErrOrStderr())
	out, notes := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if how.output != asText {
		out, notes = io.Discard, io.Discard
	}
	document := inspect.NewCleanup(how.DryRun, out, notes)
	if how.leftovers {
		return m.CleanLeftovers(cmd.Context(), settings, how.socket, log, func(c *agent.Cleanup, refusal error) error {
			if refusal != nil && !how.DryRun {
				return refusal
			}
			err := how.remove(cmd.Context(), document, kernel.IPVSWithIPTables, c, refusal) // commands remove kube-proxy's objects, whatever our mode is
			return errors.Join(err, how.print(cmd, document))
		})
	}
	return m.Clean(cmd.Context(), settings, how.Cleaning, log, func(node *daemon.Node, c *agent.Cleanup, refusal error) error {
		if refusal != nil && !how.DryRun {
			return refusal
		}
		return how.remove(cmd.Context(), document, node.Mode, c, refusal)
	}, func(planned bool) error {
		err := how.removeLink(document, m)
		if planned { // otherwise, virtual servers may still use the reserved node ports
			err = errors.Join(err, how.releasePorts(document, m))
		} else if document.Empty() {
			return err
		}
		return errors.Join(err, how.print(cmd, document))
	})
}

// remove lists what was found, and removes it unless this is a dry run. refusal is the reason why a run that is not dry would refuse.
func (how cleaning) remove(ctx context.Context, document *inspect.Cleanup, mode kernel.Mode, c *agent.Cleanup, refusal error) error {
	if refusal != nil {
		document.Refuse(refusal)
	}
	if how.leftovers {
		document.FoundLeftovers(c.Plan, mode, c.Foreign, c.ForeignServers, c.Kept)
	} else {
		document.Found(c.Plan, mode, c.Foreign)
	}
	if how.DryRun {
		return nil
	}
	return c.Run(ctx, document.Did)
}

// removeLink removes what a killed agent in user space leaves while one of its connections is open.
func (how cleaning) removeLink(document *inspect.Cleanup, m *machine.Machine) error {
	what := kernel.Device + " of an agent in user space, and its routes"
	exists, err := m.Link.Exists()
	if err == nil && !exists {
		return nil
	}
	if err == nil && !how.DryRun {
		err = m.Link.Remove()
	}
	document.DidLast(what, err)
	return err
}

// releasePorts removes the node ports that the agent has reserved.
func (how cleaning) releasePorts(document *inspect.Cleanup, m *machine.Machine) error {
	ports, err := m.SourcePorts.Added()
	if err == nil && len(ports) == 0 {
		return nil
	}
	if err == nil && !how.DryRun {
		err = m.SourcePorts.Release()
	}
	what := "the agent's node ports"
	if len(ports) > 0 {
		what += " " + ports.String()
	}
	document.DidLast(what+" from the sysctl net.ipv4.ip_local_reserved_ports", err)
	return err
}

func (how cleaning) print(cmd *cobra.Command, document *inspect.Cleanup) error {
	return inspect.Write(cmd.OutOrStdout(), how.output, document, func(w io.Writer) error { return document.PrintNothing(w) })
}
