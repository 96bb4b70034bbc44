package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// cleanupDocument is the JSON and YAML output of cleanup. Operations are written as the equivalent commands.
type cleanupDocument struct {
	header
	DryRun bool `json:"dryRun"`
	// Refused is the reason why cleanup would refuse without --dry-run.
	Refused string `json:"refused,omitempty"`
	// ToRemove is the result of a dry run, Removed and Failed that of a real run.
	ToRemove []string         `json:"toRemove"`
	Removed  []string         `json:"removed"`
	Failed   []cleanupFailure `json:"failed"`
	// ForeignAddresses are other programs' addresses on kube-ipvs0. The device is not removed while it has any.
	ForeignAddresses []string `json:"foreignAddresses"`
}

type cleanupFailure struct {
	Operation string `json:"operation"`
	Error     string `json:"error"`
}

// cleanupPrinter prints text line by line, or one document at the end.
type cleanupPrinter struct {
	cleanupDocument
	output         string
	stdout, stderr io.Writer
}

func newCleanupPrinter(cmd *cobra.Command, how cleaning) *cleanupPrinter {
	return &cleanupPrinter{
		cleanupDocument: cleanupDocument{
			header: headerOf("Cleanup"), DryRun: how.dryRun,
			ToRemove: []string{}, Removed: []string{}, Failed: []cleanupFailure{}, ForeignAddresses: []string{},
		},
		output: how.output, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
	}
}

// refused says why cleanup would refuse without --dry-run.
func (t *cleanupPrinter) refused(why error) {
	t.Refused = why.Error()
	if t.output == asText {
		fmt.Fprintln(t.stderr, "without --dry-run, cleanup would refuse:", why)
	}
}

func (t *cleanupPrinter) found(c *agent.Cleanup) {
	for _, addr := range c.Foreign {
		t.ForeignAddresses = append(t.ForeignAddresses, addr.String())
	}
	if t.DryRun {
		for _, phase := range c.Plan.Phases {
			for _, op := range phase.Ops {
				t.ToRemove = append(t.ToRemove, op.String())
			}
		}
	}
	if t.output != asText {
		return
	}
	for _, addr := range t.ForeignAddresses {
		fmt.Fprintf(t.stderr, "address %s on %s belongs to another program; keeping the address and the device\n", addr, kernel.Device)
	}
	switch {
	case c.Plan.Len() == 0:
		fmt.Fprintln(t.stdout, "no objects of kube-ipvs on this node")
	case t.DryRun:
		inspect.Plan(t.stdout, c.Plan)
	}
}

func (t *cleanupPrinter) removed(op kernel.Op, err error) {
	if err == nil {
		t.Removed = append(t.Removed, op.String())
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

func (t *cleanupPrinter) end() error {
	if t.output == asText {
		return nil
	}
	return encode(t.stdout, t.output, t.cleanupDocument)
}
