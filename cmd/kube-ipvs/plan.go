//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

func newPlan(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	var dir, output string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show the wanted kernel state, or how this node's kernel differs from it",
		Long: `plan -f DIR prints the kernel state for the manifests in DIR, as the commands that would create it.
It requires no cluster, no root privileges and no IPVS. Node ports use the addresses of the Node
manifest that --hostname-override names; without that manifest, there are no node ports.

Without -f, plan reads the Services from the API server (or from --manifests) and the state of this
node's kernel, and prints the difference: what the agent would do now, in order. It changes nothing.
The exit status is 3 if there is a difference.`,
		Example: `  kube-ipvs plan -f manifests/ --cluster-cidr 10.244.0.0/16
  kube-ipvs plan -f manifests/ -o json
  kube-ipvs plan --kubeconfig /etc/kubernetes/kube-ipvs.conf`,
		Args: noArguments,
		RunE: withSettings(&flags, func(cmd *cobra.Command, settings *config.Settings) error {
			if dir != "" {
				return planDir(cmd, settings, dir, output)
			}
			return planNode(cmd, m, settings, output)
		}),
	}
	flags.AddRun(cmd.Flags())
	cmd.Flags().StringVarP(&dir, "filename", "f", "", "directory of Service, EndpointSlice and Node manifests")
	addOutput(cmd, &output)
	addCheck(cmd, func() error {
		if dir == "" && cmd.Flags().Changed("filename") {
			return errors.New("--filename is empty; use a directory of manifests")
		}
		return nil
	})
	return cmd
}

// planDir prints the wanted state for manifests. It prints problems to stderr, and fails if there are any.
func planDir(cmd *cobra.Command, settings *config.Settings, dir string, output string) error {
	state, problems, err := daemon.PlanDir(settings, dir)
	if err != nil {
		return err
	}
	err = inspect.Write(cmd.OutOrStdout(), output, inspect.AsJSON(state), func(w io.Writer) error {
		inspect.State(w, state)
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), p)
	}
	switch len(problems) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("1 problem in %s; the plan covers everything else", dir)
	}
	return fmt.Errorf("%d problems in %s; the plan covers everything else", len(problems), dir)
}

func planNode(cmd *cobra.Command, m *machine.Machine, settings *config.Settings, output string) error {
	if err := m.InProcess(); err != nil {
		return fmt.Errorf("%w, so there is no kernel state to compare with; run `kube-ipvs status` to see whether the agent has applied all changes, "+
			"or use -f to see the wanted state", err)
	}
	ctx, log := cmd.Context(), daemon.ErrorLog(cmd.ErrOrStderr())
	node, err := daemon.OpenIdle(ctx, m.Machine, settings, log)
	if err != nil {
		return err
	}
	defer node.Close(log)
	idle, err := node.Idle(ctx, settings, version, log)
	if err != nil {
		return err
	}
	plan, err := idle.Plan(ctx)
	if err != nil {
		return err
	}
	err = inspect.Write(cmd.OutOrStdout(), output, inspect.PlanAsJSON(plan, node.Mode), func(w io.Writer) error {
		inspect.Plan(w, plan, node.Mode)
		return nil
	})
	if err == nil && plan.Len() > 0 {
		err = errDiffers
	}
	return err
}
