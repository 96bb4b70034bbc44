package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// cleanupDocument is what cleanup prints for programs.
type cleanupDocument struct {
	DryRun bool `json:"dryRun"`
	// Commands are those that would do what was done, or is to be done.
	Commands []string         `json:"commands"`
	Failed   []cleanupFailure `json:"failed"`
	// Elsewhere are rules of an earlier start, in the variant of iptables that this node does not use any more.
	Elsewhere string `json:"elsewhere,omitempty"`
	// Foreign are addresses of others on kube-ipvs0, for whose sake it stays.
	Foreign []string `json:"foreign"`
}

type cleanupFailure struct {
	Command string `json:"command"`
	Error   string `json:"error"`
}

// cleanupTeller prints for people as it goes, and for programs at the end.
type cleanupTeller struct {
	cleanupDocument
	output         string
	stdout, stderr io.Writer
}

func newCleanupTeller(cmd *cobra.Command, how cleaning) *cleanupTeller {
	return &cleanupTeller{
		cleanupDocument: cleanupDocument{DryRun: how.dryRun, Commands: []string{}, Failed: []cleanupFailure{}, Foreign: []string{}},
		output:          how.output, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
	}
}

func (t *cleanupTeller) found(c *agent.Cleanup, elsewhere *iptables.Leftovers) {
	for _, addr := range c.Foreign {
		t.Foreign = append(t.Foreign, addr.String())
	}
	if elsewhere != nil {
		t.Elsewhere = elsewhere.String()
	}
	if t.DryRun {
		for _, phase := range c.Plan.Phases {
			for _, op := range phase.Ops {
				t.Commands = append(t.Commands, op.String())
			}
		}
	}
	if t.output != asText {
		return
	}
	for _, addr := range t.Foreign {
		fmt.Fprintf(t.stderr, "address %s on %s is not ours: it stays, and the device with it\n", addr, kernel.Device)
	}
	if elsewhere != nil {
		fmt.Fprintf(t.stdout, "# rules of an earlier start\n%s\n", elsewhere)
	}
	switch {
	case c.Plan.Len() == 0 && elsewhere == nil:
		fmt.Fprintln(t.stdout, "there is nothing of kube-ipvs on this node")
	case t.DryRun:
		inspect.Plan(t.stdout, c.Plan)
	}
}

func (t *cleanupTeller) removed(op kernel.Op, err error) {
	if err == nil {
		t.Commands = append(t.Commands, op.String())
	} else {
		t.Failed = append(t.Failed, cleanupFailure{op.String(), err.Error()})
	}
	switch {
	case t.output != asText:
	case err != nil:
		fmt.Fprintf(t.stderr, "failed: %s: %v\n", op, err)
	default:
		fmt.Fprintln(t.stdout, op)
	}
}

func (t *cleanupTeller) end() error {
	if t.output == asText {
		return nil
	}
	return encode(t.stdout, t.output, t.cleanupDocument)
}
