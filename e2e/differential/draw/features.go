package draw

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// Feature is a property of a Service that a comparison must cover.
type Feature struct {
	Name string
	// Min is the minimum number of Services with the feature in a batch.
	Min int
	has func(World, Service) bool
}

// Features lists what every batch must cover. Features that need a unique address come first.
var Features = []Feature{
	{"ClusterIP that is this node's address", 1, clusterIP(func(w World, a netip.Addr) bool { return slices.Contains(w.Interfaces, a) })},
	{"ClusterIP that is another node's address", 1, clusterIP(func(w World, a netip.Addr) bool { return slices.Contains(w.OtherNode().Addresses(), a) })},
	{"IPv4 only", 2, families(corev1.IPv4Protocol)},
	{"IPv6 only", 2, families(corev1.IPv6Protocol)},
	{"dual-stack, IPv4 first", 2, families(corev1.IPv4Protocol, corev1.IPv6Protocol)},
	{"dual-stack, IPv6 first", 2, families(corev1.IPv6Protocol, corev1.IPv4Protocol)},
	{"type ClusterIP", 2, typed(corev1.ServiceTypeClusterIP)},
	{"type NodePort", 2, typed(corev1.ServiceTypeNodePort)},
	{"type LoadBalancer", 2, typed(corev1.ServiceTypeLoadBalancer)},
	{"type ExternalName", 1, typed(corev1.ServiceTypeExternalName)},
	{"headless", 1, object(func(o *corev1.Service) bool { return o.Spec.ClusterIP == corev1.ClusterIPNone })},
	{"served by another program", 1, object(func(o *corev1.Service) bool { return o.Labels[otherProxy] != "" })},
	{"TCP", 2, speaks(corev1.ProtocolTCP)},
	{"UDP", 2, speaks(corev1.ProtocolUDP)},
	{"SCTP", 2, speaks(corev1.ProtocolSCTP)},
	{"several ports", 2, object(func(o *corev1.Service) bool { return len(o.Spec.Ports) > 1 })},
	{"one node port for two protocols", 1, object(sharedNodePort)},
	{"session affinity", 2, served(func(o *corev1.Service) bool { return o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP })},
	{"internal policy Local", 2, served(internalLocal)},
	{"external policy Local, NodePort", 1, both(served(externalLocal), typed(corev1.ServiceTypeNodePort))},
	{"external policy Local, LoadBalancer", 1, both(served(externalLocal), typed(corev1.ServiceTypeLoadBalancer))},
	{"external policy Local, external IP", 1, both(served(externalLocal), external(func(World, netip.Addr) bool { return true }))},
	{"load balancer, VIP", 2, ingress(func(in corev1.LoadBalancerIngress) bool {
		return in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP)
	})},
	{"load balancer, proxy", 1, ingress(func(in corev1.LoadBalancerIngress) bool {
		return in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy
	})},
	{"load balancer, host name", 1, ingress(func(in corev1.LoadBalancerIngress) bool { return in.Hostname != "" })},
	{"load balancer without node ports", 1, served(func(o *corev1.Service) bool {
		return o.Spec.AllocateLoadBalancerNodePorts != nil && !*o.Spec.AllocateLoadBalancerNodePorts
	})},
	{"source ranges", 2, ranges(func(netip.Prefix) bool { return true })},
	{"source range of one address", 1, ranges(netip.Prefix.IsSingleIP)},
	{"source range that contains all addresses", 1, ranges(func(p netip.Prefix) bool { return p.Bits() == 0 })},
	{"external IP", 2, external(func(World, netip.Addr) bool { return true })},
	{"external IP that is on this node's interface", 1, external(func(w World, a netip.Addr) bool { return slices.Contains(w.Here().Internal, a) })},
	{"external IP that is in this node's Node object", 1, external(func(w World, a netip.Addr) bool { return slices.Contains(w.Here().External, a) })},
	{"external IP of this node, with a port that the node needs", 1, both(external(func(w World, a netip.Addr) bool {
		return slices.Contains(w.Here().Addresses(), a)
	}), object(func(o *corev1.Service) bool {
		return anyPort(o, func(p corev1.ServicePort) bool { return p.Port == 22 && p.Protocol == corev1.ProtocolTCP })
	}))},
	{"external IP of another node", 1, external(func(w World, a netip.Addr) bool { return slices.Contains(w.OtherNode().Addresses(), a) })},
	{"external IP in a family without a ClusterIP", 1, func(w World, s Service) bool {
		return external(func(_ World, a netip.Addr) bool {
			return !slices.ContainsFunc(s.Object.Spec.ClusterIPs, func(ip string) bool { return netip.MustParseAddr(ip).Is4() == a.Is4() })
		})(w, s)
	}},
	{"load balancer with another node's address", 1, func(w World, s Service) bool {
		return ingress(func(in corev1.LoadBalancerIngress) bool {
			a, err := netip.ParseAddr(in.IP)
			return err == nil && slices.Contains(w.OtherNode().Addresses(), a)
		})(w, s)
	}},
	{"an address that several Services claim", 6, claims(contestedHost)},
	{"node port, external policy Cluster", 2, served(func(o *corev1.Service) bool {
		return !externalLocal(o) && anyPort(o, func(p corev1.ServicePort) bool { return p.NodePort != 0 && p.Protocol != corev1.ProtocolSCTP })
	})},
	{"a port that equals a node port", 3, func(w World, s Service) bool {
		return !internalLocal(s.Object) && answers(w, s) && anyServedPort(func(p corev1.ServicePort, all []Target) bool {
			return p.Port >= 30000 && p.Protocol != corev1.ProtocolSCTP && len(Usable(all)) > 0
		})(w, s)
	}},
	{"SCTP over IPv4 without a usable endpoint", 1, func(w World, s Service) bool {
		return slices.Contains(s.Object.Spec.IPFamilies, corev1.IPv4Protocol) && anyServedPort(func(p corev1.ServicePort, all []Target) bool {
			return p.Protocol == corev1.ProtocolSCTP && len(Usable(all)) == 0
		})(w, s)
	}},
	{"no slice", 1, func(_ World, s Service) bool { return s.Served() && len(s.Slices) == 0 }},
	{"several slices", 2, func(_ World, s Service) bool { return len(s.Slices) > 2 }},
	{"slice without ports", 1, func(_ World, s Service) bool {
		return slices.ContainsFunc(s.Slices, func(e *discovery.EndpointSlice) bool { return len(e.Ports) == 0 })
	}},
	{"no usable endpoint", 1, targets(func(all []Target) bool { return len(all) > 0 && len(Usable(all)) == 0 })},
	{"endpoint not ready", 1, anyTarget(func(t Target) bool { return !t.Ready && !t.Terminating })},
	{"endpoint terminating and serving", 1, anyTarget(func(t Target) bool { return !t.Ready && t.Terminating && t.Serving })},
	{"endpoint terminating and not serving", 1, anyTarget(func(t Target) bool { return t.Terminating && !t.Serving })},
	{"only terminating endpoints", 1, targets(func(all []Target) bool { u := Usable(all); return len(u) > 0 && !u[0].Ready })},
	{"endpoint listed twice", 1, twice(func(a, b Target) bool { return true })},
	{"endpoint listed twice, in different states", 1, twice(func(a, b Target) bool { return a.Terminating != b.Terminating })},
	{"endpoint without a node", 1, endpoint(func(_ World, e discovery.Endpoint) bool { return e.NodeName == nil })},
	{"endpoint on the host's network", 1, endpoint(func(w World, e discovery.Endpoint) bool {
		return slices.Contains(w.Here().Internal, netip.MustParseAddr(e.Addresses[0]))
	})},
	{"endpoint with another Service's address", 1, endpoint(func(_ World, e discovery.Endpoint) bool {
		a := netip.MustParseAddr(e.Addresses[0])
		return slices.ContainsFunc(Virtual(), func(r netip.Prefix) bool { return r.Contains(a) })
	})},
	{"usable endpoint with the Service's own address", 1, eachServedPort(
		func(s Service, here string, port corev1.ServicePort, v6 bool) bool {
			return slices.ContainsFunc(Usable(s.Targets(here, port, v6)), func(t Target) bool {
				return slices.Contains(s.Object.Spec.ClusterIPs, t.Addr.Addr().String())
			})
		})},
	{"multicast endpoint", 1, endpoint(func(_ World, e discovery.Endpoint) bool { return netip.MustParseAddr(e.Addresses[0]).IsMulticast() })},
	{"broadcast endpoint", 1, endpoint(func(_ World, e discovery.Endpoint) bool { return netip.MustParseAddr(e.Addresses[0]) == broadcast })},
	{"only multicast or broadcast endpoints are usable", 1, targets(func(all []Target) bool {
		return len(Usable(Fit(all))) > 0 && len(Usable(all)) > 0 && len(Fit(Usable(all))) == 0
	})},
	{"hints by zone", 1, endpoint(func(_ World, e discovery.Endpoint) bool { return e.Hints != nil && len(e.Hints.ForNodes) == 0 })},
	{"hints by node", 1, endpoint(func(_ World, e discovery.Endpoint) bool { return e.Hints != nil && len(e.Hints.ForNodes) > 0 })},
	{"internal policy Local, no local endpoint", 2, noneLocal(internalLocal)},
	{"internal policy Local, no local endpoint, with node ports", 1, both(noneLocal(internalLocal), served(func(o *corev1.Service) bool {
		return o.Spec.Type != corev1.ServiceTypeClusterIP && anyPort(o, func(p corev1.ServicePort) bool { return p.NodePort != 0 })
	}))},
	{"external policy Local, no local endpoint", 1, noneLocal(externalLocal)},
	{"external policy Local, some local", 1, func(w World, s Service) bool {
		return externalLocal(s.Object) && targets(func(all []Target) bool { return len(Usable(Local(all))) > 0 })(w, s)
	}},
}

// Count counts the Services with each feature.
func Count(w World, set Set) map[string]int {
	counts := map[string]int{}
	for _, f := range Features {
		for _, svc := range set.Services {
			if f.has(w, svc) {
				counts[f.Name]++
			}
		}
	}
	return counts
}

// FeatureTable formats the counts. It also returns the features below their minimum. The minimum
// applies to each batch.
func FeatureTable(counts map[string]int, batches int) (table string, missing []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%-60s %8s %8s\n", "feature", "Services", "at least")
	for _, f := range Features {
		fmt.Fprintf(&b, "%-60s %8d %8d\n", f.Name, counts[f.Name], f.Min*batches)
		if counts[f.Name] < f.Min*batches {
			missing = append(missing, fmt.Sprintf("%s: %d of %d", f.Name, counts[f.Name], f.Min*batches))
		}
	}
	return b.String(), missing
}

type has = func(World, Service) bool

func object(of func(*corev1.Service) bool) has {
	return func(_ World, s Service) bool { return of(s.Object) }
}

func served(of func(*corev1.Service) bool) has {
	return func(_ World, s Service) bool { return s.Served() && of(s.Object) }
}

func both(a, b has) has {
	return func(w World, s Service) bool { return a(w, s) && b(w, s) }
}

func families(list ...corev1.IPFamily) has {
	return served(func(o *corev1.Service) bool { return slices.Equal(o.Spec.IPFamilies, list) })
}

func typed(t corev1.ServiceType) has {
	return object(func(o *corev1.Service) bool { return o.Spec.Type == t })
}

func speaks(p corev1.Protocol) has {
	return served(func(o *corev1.Service) bool {
		return anyPort(o, func(port corev1.ServicePort) bool { return port.Protocol == p })
	})
}

func anyPort(o *corev1.Service, is func(corev1.ServicePort) bool) bool {
	return slices.ContainsFunc(o.Spec.Ports, is)
}

func sharedNodePort(o *corev1.Service) bool {
	ports := o.Spec.Ports
	return len(ports) > 1 && ports[0].NodePort != 0 && ports[0].NodePort == ports[1].NodePort
}

func internalLocal(o *corev1.Service) bool {
	return o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
}

func externalLocal(o *corev1.Service) bool {
	return o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func ingress(is func(corev1.LoadBalancerIngress) bool) has {
	return served(func(o *corev1.Service) bool { return slices.ContainsFunc(o.Status.LoadBalancer.Ingress, is) })
}

func ranges(is func(netip.Prefix) bool) has {
	return served(func(o *corev1.Service) bool {
		return slices.ContainsFunc(o.Spec.LoadBalancerSourceRanges, func(r string) bool { return is(netip.MustParsePrefix(r)) })
	})
}

func external(is func(World, netip.Addr) bool) has {
	return func(w World, s Service) bool {
		return s.Served() && slices.ContainsFunc(s.Object.Spec.ExternalIPs, func(ip string) bool { return is(w, netip.MustParseAddr(ip)) })
	}
}

func clusterIP(is func(World, netip.Addr) bool) has {
	return func(w World, s Service) bool {
		return s.Served() && slices.ContainsFunc(s.Object.Spec.ClusterIPs, func(ip string) bool { return is(w, netip.MustParseAddr(ip)) })
	}
}

func claims(host int) has {
	return func(w World, s Service) bool {
		is := func(ip string) bool {
			return ip == BalancerRanges.addr(false, host).String() || ip == BalancerRanges.addr(true, host).String()
		}
		return s.Served() && (slices.ContainsFunc(s.Object.Spec.ExternalIPs, is) ||
			slices.ContainsFunc(s.Object.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool { return is(in.IP) }))
	}
}

func targets(is func([]Target) bool) has {
	return anyServedPort(func(_ corev1.ServicePort, all []Target) bool { return is(all) })
}

func anyServedPort(is func(corev1.ServicePort, []Target) bool) has {
	return eachServedPort(func(s Service, here string, port corev1.ServicePort, v6 bool) bool {
		return is(port, s.Targets(here, port, v6))
	})
}

// eachServedPort matches Services for which is returns true for at least one port and family.
func eachServedPort(is func(s Service, here string, port corev1.ServicePort, v6 bool) bool) has {
	return func(w World, s Service) bool {
		if !s.Served() {
			return false
		}
		for _, port := range s.Object.Spec.Ports {
			for _, family := range s.Object.Spec.IPFamilies {
				if is(s, w.Here().Name, port, family == corev1.IPv6Protocol) {
					return true
				}
			}
		}
		return false
	}
}

// twice matches Services that list an address twice, with entries for which is returns true.
func twice(is func(a, b Target) bool) has {
	return eachServedPort(func(s Service, here string, port corev1.ServicePort, v6 bool) bool {
		all := s.listed(here, port, v6)
		for i, a := range all {
			if slices.ContainsFunc(all[i+1:], func(b Target) bool { return a.Addr == b.Addr && is(a, b) }) {
				return true
			}
		}
		return false
	})
}

func anyTarget(is func(Target) bool) has {
	return targets(func(all []Target) bool { return slices.ContainsFunc(all, is) })
}

// noneLocal matches Services without a local endpoint. All endpoints are pods that answer, so that connections show the
// effect of the policy.
func noneLocal(policy func(*corev1.Service) bool) has {
	return func(w World, s Service) bool {
		return policy(s.Object) && answers(w, s) && targets(func(all []Target) bool {
			return len(Usable(all)) > 0 && len(Usable(Local(all))) == 0
		})(w, s)
	}
}

func answers(w World, s Service) bool {
	return !endpoint(func(w World, e discovery.Endpoint) bool {
		a := netip.MustParseAddr(e.Addresses[0])
		return !slices.ContainsFunc(w.Pods, func(p Pod) bool { return p.V4 == a || p.V6 == a })
	})(w, s)
}

func endpoint(is func(World, discovery.Endpoint) bool) has {
	return func(w World, s Service) bool {
		return s.Served() && slices.ContainsFunc(s.Slices, func(slice *discovery.EndpointSlice) bool {
			return slices.ContainsFunc(slice.Endpoints, func(e discovery.Endpoint) bool { return is(w, e) })
		})
	}
}
