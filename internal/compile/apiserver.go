package compile

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// apiServer contains the addresses of the API server. A load balancer IP or external IP must not be one of them. Otherwise the agent would lose its
// connection to the API server, and never learn that the Service was deleted. A ClusterIP may be an address of the API server, because the agent may
// reach the API server through its Service.
type apiServer struct {
	// contacts are the addresses that the agent connects to. endpoints are the endpoint addresses of the Service
	// default/kubernetes.
	contacts, endpoints map[netip.AddrPort]struct{}
	addrs               map[netip.Addr]struct{}
}

// kubernetes is the name of the API server's own Service and of the EndpointSlice that the API server writes for it. Other slices do not count.
// Otherwise anyone who may create EndpointSlices could reserve any address.
var kubernetes = model.ServiceID{Namespace: "default", Name: "kubernetes"}

func (s *apiServer) has(a netip.Addr) bool {
	_, ok := s.addrs[a]
	return ok
}

func (s *apiServer) at(a netip.AddrPort) bool {
	_, contact := s.contacts[a]
	_, endpoint := s.endpoints[a]
	return contact || endpoint
}

// set replaces the addresses, and returns those at which the API server has gained or lost a port.
func (s *apiServer) set(contacts, endpoints map[netip.AddrPort]struct{}) (changed map[netip.Addr]struct{}) {
	now := apiServer{contacts, endpoints, map[netip.Addr]struct{}{}}
	changed = map[netip.Addr]struct{}{}
	for _, list := range []map[netip.AddrPort]struct{}{contacts, endpoints, s.contacts, s.endpoints} {
		for at := range list {
			if now.at(at) {
				now.addrs[at.Addr()] = struct{}{}
			}
			if now.at(at) != s.at(at) {
				changed[at.Addr()] = struct{}{}
			}
		}
	}
	*s = now
	return changed
}

// apiEndpoints returns the endpoints of the API server's own Service.
func apiEndpoints(svc *model.Service) map[netip.AddrPort]struct{} {
	endpoints := map[netip.AddrPort]struct{}{}
	if svc == nil {
		return endpoints
	}
	for _, slice := range svc.Slices {
		if slice.Name != kubernetes.Name {
			continue
		}
		for i := range slice.Endpoints {
			for _, port := range slice.Ports {
				endpoints[netip.AddrPortFrom(slice.Endpoints[i].Addr, port.Port)] = struct{}{}
			}
		}
	}
	return endpoints
}
