// Package model says what the cluster asks of this node: Services with their endpoints, and the nodes, as plain values.
//
// A value is immutable once it has left the watch package: a change is a new value. Everything in it is already parsed and
// valid in form (an address is an address); what it means is for the compile package to decide.
//
// May import: the standard library and inet.
package model

import (
	"cmp"
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
	// ClusterIPs are the virtual addresses, at most one of a family. A family without one is not served at all.
	ClusterIPs []netip.Addr
	// ExternalIPs are addresses that somebody else routes to the nodes (spec.externalIPs).
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are those of the status that packets still carry when they reach a node (ipMode VIP).
	LoadBalancerIPs []netip.Addr
	// SourceRanges are the clients that may use the LoadBalancerIPs; a family without a range is open to everybody.
	SourceRanges []netip.Prefix
	// InternalLocal and ExternalLocal are the traffic policies "Local": for the ClusterIPs, and for all other addresses.
	InternalLocal, ExternalLocal bool
	// HealthCheckPort is the node port that tells load balancers whether this node has endpoints; 0 for none. It is set only
	// for a LoadBalancer Service whose external policy is Local.
	HealthCheckPort uint16
	// AffinityTimeout is how long a client stays with its endpoint; 0 without sessionAffinity.
	AffinityTimeout time.Duration
	Ports           []ServicePort
	Balancing       Balancing
	// Slices are the Service's EndpointSlices, sorted by name.
	Slices []*EndpointSlice
}

// Internal is the Service as it would be without any address but its ClusterIPs.
func (s *Service) Internal() *Service {
	internal := *s
	internal.ExternalIPs, internal.LoadBalancerIPs, internal.HealthCheckPort = nil, nil, 0
	internal.Ports = slices.Clone(s.Ports)
	for i := range internal.Ports {
		internal.Ports[i].NodePort = 0
	}
	return &internal
}

// Compare is the order in which Services claim addresses: the oldest first, then by name.
func (s *Service) Compare(o *Service) int {
	return cmp.Or(s.Created.Compare(o.Created), s.ID.Compare(o.ID))
}

// ServicePort is one port of a Service.
type ServicePort struct {
	Name     string
	Protocol inet.Protocol
	Port     uint16
	// NodePort is the port on every node's addresses; 0 for none.
	NodePort uint16
}

// EndpointSlice is a part of a Service's endpoints: of one family, with one list of target ports.
type EndpointSlice struct {
	Name      string
	Family    inet.Family
	Ports     []EndpointPort
	Endpoints []Endpoint
}

// Trigger is when the change was made in the cluster that made an EndpointSlice change
// (endpoints.kubernetes.io/last-change-trigger-time).
type Trigger struct {
	Family inet.Family
	At     time.Time
	// Heard is when this node heard of it.
	Heard time.Time
}

// EndpointPort says on which port the endpoints of a slice serve the Service port of that name.
type EndpointPort struct {
	Name     string
	Protocol inet.Protocol
	Port     uint16
}

// Endpoint is one place where a Service is served.
type Endpoint struct {
	Addr netip.Addr
	// Ready endpoints get new connections. Serving ones could, and Terminating ones are on their way out.
	Ready, Serving, Terminating bool
	// Node, Zone and Pod are empty where the slice does not say.
	Node, Zone string
	Pod        string // namespace/name
	// ForNodes and ForZones are the topology hints: whose clients this endpoint is meant for. Empty where there are none.
	ForNodes, ForZones []string
}

// Node is what a Node object says that matters to Services.
type Node struct {
	Name string
	// Addresses are the internal ones, then the external ones, in the object's order.
	Addresses []netip.Addr
	// PodCIDRs are the ranges of the node's pods; empty while none is assigned.
	PodCIDRs []netip.Prefix
	// Zone is empty where the node has no such label.
	Zone string
	// Weight multiplies the weights of the node's endpoints. WeightSet tells 0 from not said, which is 1.
	Weight    uint32
	WeightSet bool
	// Leaving says that the node is being deleted, or is marked for it by the cluster autoscaler.
	Leaving bool
}

// Changes is what happened in the cluster since the last time somebody asked.
type Changes struct {
	// Services that changed; nil for one that is gone.
	Services map[ServiceID]*Service
	// Problems with objects that could not be made into a Service at all, by object. An empty list says: all well again.
	Problems map[ObjectRef][]Problem
	// Nodes that changed, by name; nil for one that is gone.
	Nodes map[string]*Node
	// Triggers of the EndpointSlices that changed, where they say.
	Triggers []Trigger
}
