//go:build linux

package daemon

import (
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockets"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// podSetter returns how to pass changed ranges of pods to a kernel that has no rules to match them. It returns nil for other kernels.
func podSetter(k Kernel) func([]netip.Prefix) {
	if process, ok := k.(*sockets.Kernel); ok {
		return process.SetPods
	}
	return nil
}

// openSockets opens a kernel that serves Services in this process, at their addresses.
func openSockets(settings *config.Settings, chosen preflight.Choice, log *zap.Logger) (Kernel, error) {
	pods := settings.Compile().Local.CIDRs
	if len(pods) == 0 {
		log.Warn("the ranges of pods are unknown, so pods count as outside the cluster: with the external traffic policy Local, node ports and load " +
			"balancer addresses are closed to pods while no endpoint is on this node; set clusterCIDR")
	}
	k, err := sockets.Open(sockets.Config{
		Families: chosen.Families, Limits: settings.Forward, Sysctls: sysctlNames(settings, chosen.Mode),
		Admission: compile.AdmissionOf(chosen.Families, pods),
	})
	if err != nil {
		return nil, fmt.Errorf("open the data plane in user space: %w", err)
	}
	return k, nil
}
