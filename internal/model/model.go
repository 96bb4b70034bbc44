// Package model represents the Services, their endpoints and the nodes of the cluster as plain values.
//
// Values from package watch are immutable: a change produces a new value. Package compile interprets them.
//
// May import: the standard library and inet.
package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Service is one Service with its endpoints.
type Service struct {
	ID      ServiceID
	UID     string
	Created time.Time
	// ClusterIPs contains at most one address of each family.
	ClusterIPs []netip.Addr
	// ExternalIPs are spec.externalIPs: addresses that the cluster's operator routes to the nodes.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the addresses in the status with ipMode VIP: packets reach the node with their destination
	// address unchanged.
	LoadBalancerIPs []netip.Addr
	// SourceRanges are the clients that may use the LoadBalancerIPs. If a family has no range, all its clients may use
	// them.
	SourceRanges []netip.Prefix
	// InternalLocal and ExternalLocal are true for the traffic policy Local. The internal policy applies to ClusterIPs,
	// the external policy to all other addresses.
	InternalLocal, ExternalLocal bool
	// HealthCheckPort is the node port on which load balancers check whether this node has endpoints, or 0 for none.
	// Only LoadBalancer Services with external policy Local have this port.
	HealthCheckPort uint16
	// AffinityTimeout is how long a client keeps its endpoint, or 0 if the Service has no affinity.
	AffinityTimeout time.Duration
	Ports           []ServicePort
	Balancing       Balancing
	// Slices are the Service's EndpointSlices, sorted by name.
	Slices []*EndpointSlice
	// Held is true while the agent keeps a Service that is missing from the API server's last list. All Services in the
	// list take precedence over it.
	Held bool
}

// Internal returns a copy of the Service without node ports, external addresses or health checks.
func (s *Service) Internal() *Service {
	internal := *s
	internal.ExternalIPs, internal.LoadBalancerIPs, internal.HealthCheckPort = nil, nil, 0
	internal.Ports = slices.Clone(s.Ports)
	for i := range internal.Ports {
		internal.Ports[i].NodePort = 0
	}
	return &internal
}

// Compare orders Services by their precedence for addresses: the oldest first, then by name.
func (s *Service) Compare(o *Service) int {
	return cmp.Or(s.Created.Compare(o.Created), s.ID.Compare(o.ID))
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name     string
	Protocol inet.Protocol
	Port     uint16
	// NodePort is the port on every node's addresses, or 0 for none.
	NodePort uint16
}

// EndpointSlice contains some of a Service's endpoints. They all have the same family and target ports.
type EndpointSlice struct {
	Name      string
	Family    inet.Family
	Ports     []EndpointPort
	Endpoints []Endpoint
}

// Trigger is a change in the cluster that caused an EndpointSlice to be updated.
type Trigger struct {
	Family inet.Family
	// At is the time of the change (endpoints.kubernetes.io/last-change-trigger-time).
	At time.Time
	// Received is when this node received the EndpointSlice.
	Received time.Time
}

// EndpointPort is the target port of the Service port with the same name.
type EndpointPort struct {
	Name     string
	Protocol inet.Protocol
	Port     uint16
}

// Endpoint is one address that serves a Service, usually a pod's.
type Endpoint struct {
	Addr netip.Addr
	// Ready endpoints receive new connections. Serving endpoints can handle connections, even while they terminate.
	// Terminating endpoints belong to pods that are being deleted.
	Ready, Serving, Terminating bool
	// Node, Zone and Pod are empty if the slice does not name them.
	Node, Zone string
	Pod        string // namespace/name
	// Hints is nil if the endpoint has no topology hints, as in most clusters. A cluster may have hundreds of thousands of endpoints.
	Hints *Hints
}

// Hints are the nodes and zones whose clients should use an endpoint.
type Hints struct{ ForNodes, ForZones []string }

// Equal reports whether two hints are equal. Both may be nil.
func (h *Hints) Equal(o *Hints) bool {
	if h == nil || o == nil {
		return h == o
	}
	return slices.Equal(h.ForNodes, o.ForNodes) && slices.Equal(h.ForZones, o.ForZones)
}

// Node contains the parts of a Node object that affect Services.
type Node struct {
	Name string
	// Addresses are the internal addresses, followed by the external ones.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
	// Zone is empty if the node has no zone label.
	Zone string
	// Weight is a factor for the weights of the node's endpoints. If WeightSet is false, the factor is 1.
	Weight    uint32
	WeightSet bool
	// Leaving is true if the node is being deleted or is marked for deletion by the cluster autoscaler.
	Leaving bool
}

// Changes are the changes in the cluster since the previous call of Take.
type Changes struct {
	// Services are the changed Services. A deleted Service is nil.
	Services map[ServiceID]*Service
	// Problems are the problems of objects that cannot be converted. An empty list means that the object no longer has
	// a problem.
	Problems map[ObjectRef][]Problem
	// Nodes are the changed Nodes, by name. A deleted Node is nil.
	Nodes map[string]*Node
	// APIServer contains the addresses and ports of the API server; nil if they did not change.
	APIServer []netip.AddrPort
	// Version is the API server's version; zero if it did not change or is unknown.
	Version  Version
	Triggers []Trigger
	Held     int
	// Since is when the first of the changes arrived; zero if that is unknown.
	Since time.Time
}

// Version is a minor version of Kubernetes. The zero value is an unknown version.
type Version struct{ Major, Minor int }

// Compare orders versions from oldest to newest.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor))
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// LoopbackPort is a node port of a Service in one family. The agent forwards loopback connections to its frontend.
type LoopbackPort struct {
	Protocol inet.Protocol
	Number   uint16
	To       netip.AddrPort
}
