package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// What a Service says about clients outside the cluster. Whoever is wrong here loses only the part that is wrong: the
// ClusterIP goes on.

func externalIPs(svc *v1.Service, p *problems) []netip.Addr {
	ips := addresses{problems: p}
	for i, value := range svc.Spec.ExternalIPs {
		ips.read(fmt.Sprintf("spec.externalIPs[%d]", i), value)
	}
	return ips.list
}

// loadBalancer reads the load balancer's addresses, and who may use them.
func loadBalancer(svc *v1.Service, kind v1.ServiceType, p *problems) ([]netip.Addr, []netip.Prefix) {
	if kind != v1.ServiceTypeLoadBalancer {
		if len(svc.Spec.LoadBalancerSourceRanges) > 0 {
			p.add("spec.loadBalancerSourceRanges", "", "must be left out, or spec.type be LoadBalancer: nobody is kept out by it")
		}
		return nil, nil
	}
	ips := ingressIPs(svc, p)
	ranges, complete := sourceRanges(svc, p)
	if !complete {
		ips = withoutOpen(ips, ranges, p)
	}
	return ips, ranges
}

// ingressIPs reads the addresses that packets still carry when they reach a node. Behind a load balancer of mode Proxy they
// do not, and pods that use such an address are meant to go through the load balancer.
func ingressIPs(svc *v1.Service, p *problems) []netip.Addr {
	ips := addresses{problems: p}
	for i := range svc.Status.LoadBalancer.Ingress {
		ingress := &svc.Status.LoadBalancer.Ingress[i]
		at := func(field string) string { return fmt.Sprintf("status.loadBalancer.ingress[%d].%s", i, field) }
		switch {
		case ingress.IP == "": // it has a hostname
		case ingress.IPMode == nil || *ingress.IPMode == v1.LoadBalancerIPModeVIP:
			ips.read(at("ip"), ingress.IP)
		case *ingress.IPMode != v1.LoadBalancerIPModeProxy:
			p.add(at("ipMode"), string(*ingress.IPMode), "must be VIP or Proxy; Proxy is used")
		}
	}
	return ips.list
}

// sourceRanges reads the clients that may use the load balancer's addresses, and says whether every range could be read.
// Only the field counts: the annotation that came before it is read by cloud providers, and by no proxy.
func sourceRanges(svc *v1.Service, p *problems) (ranges []netip.Prefix, complete bool) {
	complete = true
	for i, value := range svc.Spec.LoadBalancerSourceRanges {
		prefix, err := parsePrefix(strings.TrimSpace(value)) // the API server accepts blanks around it
		if err != nil {
			p.add(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), value, "%v", err)
			complete = false
			continue
		}
		ranges = append(ranges, prefix)
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges), complete
}

// withoutOpen drops the addresses whose family has no range. No range means everybody, and where one could not be read that
// is not what its author meant.
func withoutOpen(ips []netip.Addr, ranges []netip.Prefix, p *problems) []netip.Addr {
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
		p.add("spec.loadBalancerSourceRanges", "", "must hold a CIDR of the family of %v, where nobody is served until it does: "+
			"without one these addresses would be open to everybody", open)
	}
	return guarded
}

// isLocal reads a traffic policy.
func isLocal[Policy ~string](field string, policy Policy, p *problems) bool {
	switch policy {
	case "Local":
		return true
	case "Cluster", "":
	default:
		p.add(field, string(policy), "must be Cluster or Local; Cluster is used")
	}
	return false
}

// healthCheckPort reads the port that load balancers probe. It means something only where nodes differ: for a load balancer
// whose external traffic stays on the node.
func healthCheckPort(svc *v1.Service, nodesDiffer bool, p *problems) uint16 {
	const field = "spec.healthCheckNodePort"
	switch number := svc.Spec.HealthCheckNodePort; {
	case number == 0:
	case !nodesDiffer:
		p.add(field, decimal(number), "must be left out, or spec.type be LoadBalancer and spec.externalTrafficPolicy be Local. "+
			"No health check is served")
	case !validPort(number):
		p.add(field, decimal(number), "must be between 1 and 65535. No health check is served")
	default:
		return uint16(number)
	}
	return 0
}
