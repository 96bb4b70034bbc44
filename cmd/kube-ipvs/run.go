package main

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func newRun(m *host) *cobra.Command {
	var flags config.Flags
	var once oneShot
	var output string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve the Services of the cluster on this node",
		Long: `run is the agent. It serves the Services of an API server, or of a directory of manifests, on
this node until it receives SIGTERM or SIGINT. Then it exits and leaves the kernel unchanged, so Services
keep working.

It requires CAP_NET_ADMIN and CAP_NET_RAW, a kernel with ip_vs, ip_set, nf_conntrack and dummy, and the
iptables programs. Without ip_vs, nftables balances connections. Without ip_set or the iptables programs,
nftables stores the sets and rules, and CAP_NET_RAW is not required. If run cannot write sysctls, run it
once with --init-only and full root privileges to set them.

With --data-plane=userspace, it requires no privileges and changes nothing in the kernel. The process
listens at 127.0.0.1 (and ::1) for each port of a Service: at the node port if it is 1024 or higher,
otherwise at a free port. It prints a table of these ports, and a row for each later change. Pods and
other hosts cannot connect. It is for development, and never chosen automatically. There is no status
socket, and there are no metrics or health checks.

With --data-plane=userspace and --forward-addresses=services, the process serves the addresses of
Services and node ports to all clients. It requires CAP_SYS_ADMIN, CAP_NET_ADMIN and
CAP_NET_BIND_SERVICE. Services stop working when the process ends.

run accepts all flags of kube-proxy, and warns about flags that have no effect in kube-ipvs.`,
		Example: `  kube-ipvs run --kubeconfig /etc/kubernetes/kube-ipvs.conf --cluster-cidr 10.244.0.0/16
  kube-ipvs run --manifests /etc/kube-ipvs/manifests --detect-local-mode BridgeInterface --pod-bridge-interface cni0
  kube-ipvs run --manifests ./manifests --data-plane userspace`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := flags.Load()
			if err := errors.Join(err, once.check()); err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			if act, set := once.action(cmd, m, loaded); set {
				printWarnings(cmd, loaded)
				return act()
			}
			log, level, err := daemon.NewLogger(cmd.ErrOrStderr(), loaded.LogLevel, loaded.LogFormat)
			if err != nil {
				return err
			}
			for _, warning := range loaded.Warnings {
				log.Warn(warning)
			}
			build := buildVersion()
			return daemon.Run(cmd.Context(), daemon.Config{
				Version: build.Version, Commit: build.Commit, Machine: m.Machine, Flags: &flags, Loaded: loaded, Level: level, Log: log,
				Ports: portPrinter(cmd.OutOrStdout(), output),
			})
		},
	}
	flags.AddRun(cmd.Flags())
	once.addFlags(cmd)
	addOutput(cmd, &output)
	cmd.Flags().Lookup("output").Usage = "format of the ports with --data-plane=userspace: " + strings.Join(textForms, ", ")
	return cmd
}

// portPrinter returns a function that prints changed ports. Tables after the first have no header.
func portPrinter(out io.Writer, form string) func([]view.ForwardedPort) error {
	table := inspect.Table{Widths: &[]int{}}
	return func(ports []view.ForwardedPort) error {
		document := list[view.ForwardedPort]{view.HeaderOf("ForwardedPortList"), append([]view.ForwardedPort{}, ports...)}
		err := inspect.Write(out, form, document, func(w io.Writer) error { return inspect.WritePorts(w, ports, table) })
		table.NoHeaders = true
		return err
	}
}
