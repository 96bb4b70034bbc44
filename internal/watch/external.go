package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// This file parses the Service fields that concern clients outside the cluster. A mistake in these fields never affects the ClusterIP.

func externalIPs(svc *v1.Service, p *Problems) []netip.Addr {
	ips := addresses{Problems: p}
	for i, value := range svc.Spec.ExternalIPs {
		ips.parse(fmt.Sprintf("spec.externalIPs[%d]", i), value)
	}
	return ips.list
}

// setLoadBalancer sets the addresses of a Service's load balancer, and the clients that may use them. Source ranges restrict these addresses even if they
// are also external IPs, so they are no external IPs then.
func setLoadBalancer(s *model.Service, svc *v1.Service, kind v1.ServiceType, p *Problems) {
	restricted := len(svc.Spec.LoadBalancerSourceRanges) > 0
	if kind != v1.ServiceTypeLoadBalancer {
		if restricted {
			p.AddWithRemedy("spec.loadBalancerSourceRanges", "", "has no effect on a Service that is not of type LoadBalancer: every client has access",
				"set spec.type to LoadBalancer, or remove the field")
		}
		return
	}
	ips := ingressIPs(svc, p)
	if restricted {
		s.ExternalIPs = without(s.ExternalIPs, ips)
	}
	ranges, complete := sourceRanges(svc, p)
	if !complete {
		ips = withoutOpen(ips, ranges, p)
	}
	s.LoadBalancerIPs, s.SourceRanges = ips, ranges
}

func without(ips, others []netip.Addr) []netip.Addr {
	set := make(map[netip.Addr]struct{}, len(others))
	for _, ip := range others {
		set[ip] = struct{}{}
	}
	return slices.DeleteFunc(ips, func(ip netip.Addr) bool {
		_, exists := set[ip]
		return exists
	})
}

// ingressIPs returns the load balancer addresses that are still the destination of packets when they reach a node. Packets from a load
// balancer with ipMode Proxy have the node's address as their destination. Pods must also send their packets through such a load
// balancer.
func ingressIPs(svc *v1.Service, p *Problems) []netip.Addr {
	ips := addresses{Problems: p}
	for i := range svc.Status.LoadBalancer.Ingress {
		ingress := &svc.Status.LoadBalancer.Ingress[i]
		at := func(field string) string { return fmt.Sprintf("status.loadBalancer.ingress[%d].%s", i, field) }
		switch {
		case ingress.IP == "": // this ingress has a host name instead
		case ingress.IPMode == nil || *ingress.IPMode == v1.LoadBalancerIPModeVIP:
			ips.parse(at("ip"), ingress.IP)
		case *ingress.IPMode != v1.LoadBalancerIPModeProxy:
			p.Add(at("ipMode"), string(*ingress.IPMode), "must be VIP or Proxy. The agent uses Proxy")
		}
	}
	return ips.list
}

// sourceRanges returns the clients that may use the load balancer addresses, and whether every range is valid. It ignores the
// older annotation, which only cloud providers read.
func sourceRanges(svc *v1.Service, p *Problems) (ranges []netip.Prefix, complete bool) {
	complete = true
	for i, value := range svc.Spec.LoadBalancerSourceRanges {
		prefix, err := parsePrefix(strings.TrimSpace(value)) // the API server accepts surrounding spaces
		if err != nil {
			p.Add(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), value, "%v", err)
			complete = false
			continue
		}
		ranges = append(ranges, prefix)
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges), complete
}

// withoutOpen removes the addresses of families without a range. Without a range, they would be open to every client, which is
// not what the author of an invalid range intended.
func withoutOpen(ips []netip.Addr, ranges []netip.Prefix, p *Problems) []netip.Addr {
	var guarded, open []netip.Addr
	for _, ip := range ips {
		ofFamily := func(r netip.Prefix) bool { return inet.FamilyOf(r.Addr()) == inet.FamilyOf(ip) }
		if slices.ContainsFunc(ranges, ofFamily) {
			guarded = append(guarded, ip)
		} else {
			open = append(open, ip)
		}
	}
	if len(open) > 0 {
		p.AddWithRemedy("spec.loadBalancerSourceRanges", "", fmt.Sprintf("has no valid CIDR of the family of %v. These addresses are not "+
			"served, because without a range they would be open to every client", open), "correct the range")
	}
	return guarded
}

func isLocal[Policy ~string](field string, policy Policy, p *Problems) bool {
	switch policy {
	case "Local":
		return true
	case "Cluster", "":
	default:
		p.Add(field, string(policy), "must be Cluster or Local. The agent uses Cluster")
	}
	return false
}

// healthCheckPort returns the port that load balancers probe; 0 if there is none. Only a LoadBalancer Service with the external policy
// Local has such a port. For other Services, all nodes would give the same answer.
func healthCheckPort(svc *v1.Service, probed bool, p *Problems) uint16 {
	const field = "spec.healthCheckNodePort"
	switch number := svc.Spec.HealthCheckNodePort; {
	case number == 0:
	case !probed:
		p.Add(field, decimal(number), "requires spec.type LoadBalancer and spec.externalTrafficPolicy Local. The agent does not serve this health check")
	case !validPort(number):
		p.Add(field, decimal(number), "must be between 1 and 65535. The agent does not serve this health check")
	default:
		return uint16(number)
	}
	return 0
}
