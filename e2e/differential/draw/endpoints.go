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
	// ForNodes and ForZones are topology hints.
	ForNodes, ForZones []string
}

// Unfit reports whether the kernel rejects the target because its address does not belong to a single host.
func (t Target) Unfit() bool {
	a := t.Addr.Addr()
	return a.IsMulticast() || a == broadcast
}

func (t Target) better(o Target) bool {
	switch {
	case t.Terminating != o.Terminating:
		return o.Terminating
	case t.Ready != o.Ready:
		return t.Ready
	case t.Serving != o.Serving:
		return t.Serving
	}
	return t.Local && !o.Local
}

// Targets returns the endpoints of a Service port in a family. If an address occurs twice, an entry that is not
// terminating takes precedence, because a new pod can get the address of a terminating one. After that, a ready entry
// takes precedence, then a serving one, then one on this node.
func (s Service) Targets(here string, port corev1.ServicePort, v6 bool) []Target {
	var all []Target
	for _, t := range s.listed(here, port, v6) {
		switch i := slices.IndexFunc(all, func(o Target) bool { return o.Addr == t.Addr }); {
		case i < 0:
			all = append(all, t)
		case t.better(all[i]):
			all[i] = t
		}
	}
	return all
}

func (s Service) listed(here string, port corev1.ServicePort, v6 bool) []Target {
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
	t := Target{
		Addr:        netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), port),
		Local:       e.NodeName != nil && *e.NodeName == here,
		Ready:       said(e.Conditions.Ready, true),
		Serving:     said(e.Conditions.Serving, true),
		Terminating: said(e.Conditions.Terminating, false),
	}
	if e.Hints != nil {
		for _, n := range e.Hints.ForNodes {
			t.ForNodes = append(t.ForNodes, n.Name)
		}
		for _, z := range e.Hints.ForZones {
			t.ForZones = append(t.ForZones, z.Name)
		}
	}
	return t
}

// Usable returns the targets that can receive connections: the ready ones or, if there are none, the terminating ones
// that still serve.
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

// Chosen returns the targets that receive new connections under policy Cluster: ready targets with hints for the
// node, else those with hints for its zone, else all ready targets, else terminating ones that still serve. Hints
// count only if every ready target has them.
func Chosen(all []Target, here Node) []Target {
	usable := Usable(all)
	if len(usable) == 0 || !usable[0].Ready {
		return usable
	}
	for _, hinted := range []func(Target) ([]string, string){
		func(t Target) ([]string, string) { return t.ForNodes, here.Name },
		func(t Target) ([]string, string) { return t.ForZones, here.Zone },
	} {
		without := func(t Target) bool { names, _ := hinted(t); return len(names) == 0 }
		meant := slices.DeleteFunc(slices.Clone(usable), func(t Target) bool { names, name := hinted(t); return !slices.Contains(names, name) })
		if len(meant) > 0 && !slices.ContainsFunc(usable, without) {
			return meant
		}
	}
	return usable
}

// Fit returns the targets that the kernel accepts.
func Fit(all []Target) []Target { return slices.DeleteFunc(slices.Clone(all), Target.Unfit) }

// Local returns the targets on the first node.
func Local(all []Target) []Target {
	return slices.DeleteFunc(slices.Clone(all), func(t Target) bool { return !t.Local })
}
