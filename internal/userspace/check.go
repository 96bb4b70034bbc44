package userspace

import (
	"net"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Fitness is what this data plane can serve on a machine.
type Fitness struct {
	Families []inet.Family
	// Without has the reason why a family is not served.
	Without  map[inet.Family]error
	Findings []finding.Finding
}

const (
	atLoopback = "serves Services only at 127.0.0.1 and ::1 of this machine, in the agent's process: pods and other hosts cannot connect, ClusterIPs and " +
		"DNS do not work, SCTP is not served, endpoints see this machine as the client, and connections end when the agent stops"
	atServices = "serves Services in the agent's process: SCTP is not served, endpoints " +
		"see this machine as the client, a process that listens at all addresses also answers at those of Services, and connections end when the agent stops"
)

// Check looks for the loopback addresses, which are all that this data plane needs. It also returns a warning about what it cannot do.
// services is true if the process listens at the addresses of Services.
func Check(services bool) Fitness {
	limits, remedy := atLoopback, "use it for development; on a node of a cluster, use --data-plane=auto"
	if services {
		limits, remedy = atServices, "read docs/data-planes.md; on Linux, use --data-plane=auto"
	}
	fit := Fitness{
		Families: []inet.Family{inet.IPv4}, Without: map[inet.Family]error{},
		Findings: []finding.Finding{warning("data plane userspace", limits, remedy)},
	}
	probe, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		fit.Without[inet.IPv6] = err
		fit.Findings = append(fit.Findings, warning("IPv6", "cannot listen at ::1, so IPv6 Services are not served: "+err.Error(),
			"ignore this if there are no IPv6 Services"))
		return fit
	}
	_ = probe.Close()
	fit.Families = append(fit.Families, inet.IPv6)
	return fit
}

func warning(subject, problem, remedy string) finding.Finding {
	return finding.New(finding.Warning, subject, problem, nil, remedy)
}
