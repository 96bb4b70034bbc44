package draw

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// Target is one endpoint of one Service port.
type Target struct {
	Addr                        netip.AddrPort
	Local                       bool // on the first node
	Ready, Serving, Terminating bool
}

// Targets lists what the slices say about a Service port in a family, duplicates included.
func (s Service) Targets(here string, port corev1.ServicePort, v6 bool) []Target {
	var all []Target
	for _, slice := range s.Slices {
		if (slice.AddressType == discovery.AddressTypeIPv6) != v6 {
			continue
		}
		for _, p := range slice.Ports {
			if *p.Name != port.Name || *p.Protocol != port.Protocol {
				continue
			}
			for _, e := range slice.Endpoints {
				all = append(all, target(e, uint16(*p.Port), here))
			}
		}
	}
	return all
}

func target(e discovery.Endpoint, port uint16, here string) Target {
	said := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	return Target{
		Addr:        netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), port),
		Local:       e.NodeName != nil && *e.NodeName == here,
		Ready:       said(e.Conditions.Ready, true),
		Serving:     said(e.Conditions.Serving, true),
		Terminating: said(e.Conditions.Terminating, false),
	}
}

// Usable are the targets that can take connections: the ready ones, or else those that serve while they terminate.
func Usable(all []Target) []Target {
	keep := func(which func(Target) bool) []Target {
		var kept []Target
		for _, t := range all {
			if which(t) {
				kept = append(kept, t)
			}
		}
		return kept
	}
	if ready := keep(func(t Target) bool { return t.Ready }); len(ready) > 0 {
		return ready
	}
	return keep(func(t Target) bool { return t.Serving && t.Terminating })
}

// Local are the targets on the first node.
func Local(all []Target) []Target {
	return slices.DeleteFunc(slices.Clone(all), func(t Target) bool { return !t.Local })
}
