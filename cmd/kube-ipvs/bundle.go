//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/bundle"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
)

func newBundle(m *machine.Machine, run commandLine) *cobra.Command {
	b := bundleCommand{machine: m, command: run}
	cmd := &cobra.Command{
		Use:   "bundle [FILE | -]",
		Short: "Create an archive for a bug report",
		Long: `bundle writes a .tar.gz with what a bug report needs: the output of the inspection commands, the agent's
history and metrics, the virtual servers, sets and rules of kube-ipvs, modules, sysctls, addresses, routes
and the tail of the logs. manifest.json lists every file, with the command, the duration and any error. A
part that fails or takes too long does not stop the others.

The archive contains names and addresses of Services, pods and nodes. It contains no credentials: no kubeconfig,
token, environment, private key or annotation of another program. Values that look like credentials are replaced
by REDACTED. For rules, sets and tables of other programs, it contains only names and counts.

FILE is readable only by its owner. The default is kube-ipvs-bundle-NODE-TIME.tar.gz in the current directory.
With -, the archive goes to stdout. The exit status is 0 if the archive is written, even if parts of it failed.`,
		Example: `  kube-ipvs bundle
  kube-ipvs bundle /tmp/node-1.tar.gz --force
  kubectl -n kube-system exec POD -- kube-ipvs bundle - > node-1.tar.gz`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return b.run(cmd, strings.Join(args, "")) },
	}
	cmd.Flags().BoolVar(&b.force, "force", false, "replace FILE if it exists")
	cmd.Flags().StringVar(&b.file, "config", "", "configuration file of the agent (default: the one that the running agent uses)")
	cmd.Flags().StringVar(&b.socket, "status-socket", config.StatusSocket, "status socket of this node's agent")
	return cmd
}

// commandLine runs a command of this program, and returns its exit status.
type commandLine func(ctx context.Context, m *machine.Machine, args []string, stdout, stderr io.Writer) int

type bundleCommand struct {
	inspection
	machine *machine.Machine
	command commandLine
	force   bool
	file    string
}

func (b *bundleCommand) run(cmd *cobra.Command, path string) error {
	if out, isFile := cmd.OutOrStdout().(*os.File); path == "-" && isFile && term.IsTerminal(int(out.Fd())) {
		return usageError{errors.New("stdout is a terminal; redirect it, or name a file"), cmd.CommandPath()}
	}
	v, _, _ := status.Ask(cmd.Context(), b.socket, agent.Query{}) // if no agent responds, status.json contains the reason
	manifest := &bundle.Manifest{Time: time.Now().UTC(), Version: version}
	if v != nil {
		manifest.Node = v.Node.Name
		if b.file == "" {
			b.file = v.Node.ConfigFile
		}
	}
	if path == "" {
		path = manifest.FileName()
	}
	write := func(w io.Writer) error {
		return bundle.Write(cmd.Context(), w, manifest, append(b.commands(), b.machine.BundleParts(b.socket, v)...), b.machine.Secrets(cmd.Context(), v, b.file))
	}
	if path == "-" {
		return write(cmd.OutOrStdout())
	}
	if err := bundle.Save(path, b.force, write); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, %d with errors (manifest.json)\n", path, len(manifest.Files), manifest.Failed())
	return err
}

// commands returns the parts of the bundle that this program's commands print.
func (b *bundleCommand) commands() (parts []bundle.Part) {
	socket, file := []string{"--status-socket", b.socket}, []string{}
	if b.file != "" {
		file = []string{"--config", b.file}
	}
	for _, c := range []struct {
		name, line string
		flags      []string
		patience   time.Duration
	}{
		{"agent/version.json", "version -o json", nil, 0},
		{"agent/status.txt", "status", socket, 0},
		{"agent/status.json", "status -o json", socket, 0},
		{"agent/services.txt", "services -o wide", socket, 0},
		{"agent/history.txt", "history -o wide", socket, 0},
		{"agent/history.json", "history -o json", socket, 0},
		{"agent/config.yaml", "config view", file, 0},
		{"node/doctor.txt", "doctor", append(socket, file...), time.Minute},
		{"node/preflight.txt", "preflight", file, 0},
		{"kernel/ipvsadm-Ln.txt", "ipvsadm -Ln", nil, 0},
		{"kernel/ipvsadm-stats.txt", "ipvsadm -Ln --stats", nil, 0},
		{"kernel/ipvsadm-timeout.txt", "ipvsadm -Ln --timeout", nil, 0},
		{"kernel/ipvsadm-Sn.txt", "ipvsadm -Sn", nil, 0},
	} {
		args := append(strings.Fields(c.line), c.flags...)
		parts = append(parts, bundle.Part{
			File: c.name, Command: "kube-ipvs " + strings.Join(args, " "), Patience: c.patience,
			Write: func(ctx context.Context, w io.Writer) error { return b.part(ctx, args, w) },
		})
	}
	return parts
}

func (b *bundleCommand) part(ctx context.Context, args []string, w io.Writer) error {
	var stderr strings.Builder
	status := b.command(ctx, b.machine, args, w, &stderr)
	if status == 0 && stderr.Len() == 0 {
		return nil
	}
	return bundle.ExitError{Status: status, Text: strings.TrimSpace(stderr.String())}
}
