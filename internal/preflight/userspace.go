package preflight

import (
	"net"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// userspace returns the result for the data plane in user space, which needs only a loopback address.
func userspace() Result {
	r := Result{
		Choice: Choice{Mode: kernel.Userspace, WhyDataPlane: "--data-plane is userspace", Families: []inet.Family{inet.IPv4}, Without: map[inet.Family]error{}},
		Findings: []finding.Finding{warning("data plane userspace",
			"serves Services only at 127.0.0.1 and ::1 of this machine, in the agent's process: pods and other hosts cannot connect, ClusterIPs and DNS do not "+
				"work, SCTP is not served, endpoints see this machine as the client, and connections end when the agent stops",
			"use it for development; on a node of a cluster, use --data-plane=auto")},
	}
	probe, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		r.Without[inet.IPv6] = err
		r.Findings = append(r.Findings, warning("IPv6", "cannot listen at ::1, so IPv6 Services are not served: "+err.Error(),
			"ignore this if there are no IPv6 Services"))
		return r
	}
	_ = probe.Close()
	r.Families = append(r.Families, inet.IPv6)
	return r
}
