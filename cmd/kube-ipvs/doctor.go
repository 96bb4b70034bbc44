//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// These are the nonzero exit statuses of doctor.
const (
	statusWarnings   = statusError(1)
	statusBroken     = statusError(2)
	statusUnexamined = statusError(3)
)

func newDoctor(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	connect := true
	l := inspection{forms: textForms}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Diagnose this node and its agent",
		Long: `Like explain, doctor traces packets to the Services that every pod needs, to Services that other
programs' rules single out, and to a random sample of the others: from a pod, from this node and from
outside. From this node, it also opens at most 20 TCP connections, for at most a second each, to
Services with ready endpoints and to ready endpoints on this node, and closes them immediately. It sends
small and large ICMP echo requests to endpoints on at most four other nodes, and ARP requests for at most
four of this node's own addresses. --connect=false prevents all this.

doctor also examines this node: the agent and its ports, its sources, other proxies and data planes, foreign
rules, the connection tables, kernel modules, sysctls, networks, certificates and tokens, the kernel's
log, and everything that preflight checks. It changes nothing, but a check can load a kernel module, and
one check connects to the API server to examine its certificate.

doctor checks the node against the settings of the running agent. Without an agent, it uses the flags
below.

It prints its findings, most serious first, each with the evidence and a remedy, and lists the checks
that could not run.

The exit status is the verdict: 0 if the node is well, 1 for warnings, 2 if something is broken (or the
command line is wrong), and 3 if doctor lacks permissions, for example because it does not run as root.`,
		Example: "  kube-ipvs doctor\n  kube-ipvs doctor -o json",
		Args:    noArguments,
		RunE: withSettings(&flags, func(cmd *cobra.Command, settings *config.Settings) error {
			a, err := machine.AskSample(cmd.Context(), l.socket)
			if err == nil && errors.Is(a.Silence, fs.ErrPermission) {
				err = a.Silence
			}
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "kube-ipvs:", err)
				return statusUnexamined
			}
			report := doctor.Examine(m.Facts(cmd.Context(), a, settings, connect))
			err = inspect.Write(cmd.OutOrStdout(), l.output, doctorDocument{view.HeaderOf("Diagnosis"), report}, report.Print)
			if err != nil {
				return err
			}
			return map[string]error{string(finding.Warning): statusWarnings, string(finding.Broken): statusBroken}[report.Verdict]
		}),
	}
	flags.AddCompile(cmd.Flags())
	cmd.Flags().BoolVar(&connect, "connect", connect, "open test connections from this node, and send ICMP echo requests and ARP requests")
	l.addFlags(cmd)
	return cmd
}

type doctorDocument struct {
	view.Header
	doctor.Report
}
