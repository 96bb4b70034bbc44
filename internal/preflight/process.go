package preflight

import (
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockets"
)

// processCapabilities are what the agent's process needs to serve Services at their addresses.
var processCapabilities = []capability{
	{unix.CAP_SYS_ADMIN, "SYS_ADMIN", "missing; the agent cannot create the network namespace in which it listens at virtual addresses"},
	{unix.CAP_NET_ADMIN, "NET_ADMIN", "missing; the agent cannot create kube-ipvs0 and routes"},
	{unix.CAP_NET_BIND_SERVICE, "NET_BIND_SERVICE", "missing; the agent cannot listen at ports below 1024"},
}

// inProcess returns the result for a process that serves Services at their addresses. It tries what the agent needs.
func inProcess() Result {
	r := Result{Choice: Choice{
		Mode: kernel.Userspace, WhyDataPlane: "--data-plane is userspace", WhyRules: "the agent's process decides which clients it admits",
		Families: inet.Families, Without: map[inet.Family]error{},
	}}
	if !hasIPv6() {
		r.Families, r.Without[inet.IPv6] = []inet.Family{inet.IPv4}, iptables.ErrNoIPv6
	}
	if r.Findings = lackingOf(processCapabilities, capabilities(), "run the agent as root"); len(r.Findings) > 0 {
		return r
	}
	if err := sockets.Probe(r.Families); err != nil {
		r.Findings = append(r.Findings, broken("network namespace", "the agent cannot listen at virtual addresses: "+err.Error(),
			"use a kernel with network namespaces, veth and routing rules, or --data-plane=auto"))
	}
	if err := sockets.Occupied(); err != nil {
		r.Findings = append(r.Findings, broken(kernel.Device, err.Error(), "stop its agent or kube-proxy, and remove its objects with kube-ipvs cleanup --data-plane=auto"))
	}
	r.Findings = append(r.Findings, warning("data plane userspace",
		"connections end when the agent stops, endpoints see this node as the client, and SCTP is not served",
		"use it where the kernel has neither IPVS nor nftables; elsewhere, use --data-plane=auto"))
	return r
}
