package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// virtualServer also returns the set that rejects or drops some clients' new connections to the frontend, if any.
func virtualServer(svc *model.Service, f frontend, eps portEndpoints, n *nodeContext) (s want.Server, guard *setRef) {
	chosen, guard := choose(svc, f.kind, eps)
	chosen.balance(svc, eps.all, n)
	ds := chosen.destinations
	s = want.Server{
		Server:       serverConfig(svc, f.key, chosen.scheduler, n),
		Alike:        chosen.alike,
		Unbound:      f.ownAddress,
		Destinations: ds,
		SlowStart:    svc.Balancing.SlowStart,
		Owner:        model.ServicePortRef{Service: svc.ID, Port: svc.Ports[f.port].Name},
	}
	if !f.ownAddress {
		s.Members = append(s.Members, vips.address(f.key.Addr.Addr()))
	}
	if guard == nil && f.ownAddress && !takesConnections(ds) {
		guard = &refused
	}
	if guard != nil {
		s.Members = append(s.Members, guard.port(f.key), guarded.port(f.key))
	}
	if f.kind != clusterIP && !svc.ExternalLocal {
		s.Members = append(s.Members, masqueraded.port(f.key))
	}
	// A port without endpoints is in no set of served ports, so the filter table rejects new connections immediately. IPVS would also
	// reject them, but would log every packet.
	if takesConnections(ds) {
		s.Members = append(s.Members, servedSet(f.kind).port(f.key))
	}
	if svc.Balancing.MaxConnections > 0 {
		s.Members = append(s.Members, limited.port(f.key))
	}
	if f.kind == loadBalancerIP {
		s.Members = append(s.Members, sourceRangeEntries(svc, f.key, n)...)
	}
	for _, e := range eps.own {
		s.Members = append(s.Members, hairpin.self(e.Addr, s.Key.Protocol))
	}
	return s, guard
}

// choose picks a frontend's endpoints by the Service's traffic policies, and returns its guard, if any.
func choose(svc *model.Service, kind frontendKind, eps portEndpoints) (*pool, *setRef) {
	switch {
	case !isLocal(svc, kind):
		return eps.cluster, nil
	case len(eps.local.endpoints) > 0:
		return eps.local, nil
	case len(eps.cluster.endpoints) == 0:
		return &pool{}, nil
	case kind == clusterIP:
		return &pool{}, &noLocal
	}
	// Clients outside the cluster must not use this node, because replies of an endpoint on another node would bypass it. Pods and the node
	// itself may, because they do not know where the endpoints are.
	return eps.cluster, &insideOnly
}

func servedSet(kind frontendKind) setRef {
	if kind == clusterIP {
		return clusterIPs
	}
	return external
}

// sourceRangeEntries restrict a load balancer's address to the clients in the Service's source ranges. Ranges inside other ranges are omitted,
// because they admit no additional clients, and some set types cannot store them.
func sourceRangeEntries(svc *model.Service, key kernel.ServerKey, n *nodeContext) []kernel.Member {
	members := []kernel.Member{firewalled.port(key), guardedIPs.address(key.Addr.Addr())}
	unrestricted := len(members)
	node, self := false, single(key.Addr.Addr())
	var last netip.Prefix
	for _, r := range svc.SourceRanges { // a range comes before the ranges inside it
		if inet.FamilyOf(r.Addr()) != key.Family() || last.Overlaps(r) {
			continue
		}
		if r.Bits() == 0 {
			return nil // every client
		}
		members, last = append(members, allowed.client(key, r)), r
		node = node || slices.ContainsFunc(n.addresses, r.Contains)
	}
	if len(members) == unrestricted {
		return nil // a family without a range is open
	}
	if node && !slices.ContainsFunc(svc.SourceRanges, self.Overlaps) {
		// For the node's own connections to the virtual address, the kernel uses that address as the source.
		members = append(members, allowed.client(key, self))
	}
	return members
}

// decision contains the results that depend on more than the Service itself.
type decision struct {
	winner    model.ServiceID
	guard     *setRef
	scheduler string
	flags     uint32
}

// NoLocal is a traffic policy that is Local although all ready endpoints of a family are on other nodes.
type NoLocal struct {
	Family   inet.Family
	External bool
}

func (n NoLocal) compare(o NoLocal) int {
	external := func(n NoLocal) int {
		if n.External {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(n.Family, o.Family), cmp.Compare(external(n), external(o)))
}

// policiesWithoutLocal lists the traffic policies that are Local although all endpoints of a port and family are on other nodes.
func policiesWithoutLocal(svc *model.Service, group []frontend, eps portEndpoints) []NoLocal {
	if len(eps.local.endpoints) > 0 || len(eps.cluster.endpoints) == 0 {
		return nil
	}
	var without []NoLocal
	for _, f := range group {
		if isLocal(svc, f.kind) {
			without = append(without, NoLocal{Family: f.key.Family(), External: f.kind != clusterIP})
		}
	}
	return without
}
