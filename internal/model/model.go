// Package model says what the cluster asks of this node: Services with their endpoints, and the nodes, as plain values.
//
// A value is immutable once it has left the watch package: a change is a new value. Everything in it is already parsed and
// valid in form (an address is an address); what it means is for the compile package to decide.
//
// May import: the standard library and inet.
package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// ServiceID names a Service.
type ServiceID struct{ Namespace, Name string }

func (id ServiceID) String() string { return id.Namespace + "/" + id.Name }

// Compare orders by namespace, then name.
func (id ServiceID) Compare(o ServiceID) int {
	return cmp.Or(cmp.Compare(id.Namespace, o.Namespace), cmp.Compare(id.Name, o.Name))
}

// Service is one Service with its endpoints.
type Service struct {
	ID      ServiceID
	UID     string
	Created time.Time
	// ClusterIPs are the virtual addresses, at most one of a family.
	ClusterIPs []netip.Addr
	// AffinityTimeout is how long a client stays with its endpoint; 0 without sessionAffinity.
	AffinityTimeout time.Duration
	Ports           []ServicePort
	// Slices are the Service's EndpointSlices, sorted by name.
	Slices []*EndpointSlice
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
}

// EndpointSlice is a part of a Service's endpoints: of one family, with one list of target ports.
type EndpointSlice struct {
	Name      string
	Family    inet.Family
	Ports     []EndpointPort
	Endpoints []Endpoint
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
}

// Problem is something wrong with one object of the cluster that only its owner can put right. All other objects go on.
type Problem struct {
	// Object is "Service default/web", or a file for manifests.
	Object string
	// Service is set when the problem belongs to a Service.
	Service ServiceID
	// Field is the path of the wrong field; Value is what it holds.
	Field, Value string
	// Message says what is wrong and what would be right.
	Message string
}

func (p Problem) String() string {
	s := p.Object
	if p.Field != "" {
		s += ": " + p.Field
	}
	if p.Value != "" {
		s += fmt.Sprintf(" %q", p.Value)
	}
	return s + ": " + p.Message
}

// Compare orders problems by object, field and text.
func (p Problem) Compare(o Problem) int {
	return cmp.Or(cmp.Compare(p.Object, o.Object), cmp.Compare(p.Field, o.Field), cmp.Compare(p.String(), o.String()))
}

// Changes is what happened in the cluster since the last time somebody asked.
type Changes struct {
	// Services that changed; nil for one that is gone.
	Services map[ServiceID]*Service
	// Problems with objects that could not be made into a Service at all, by object. An empty list says: all well again.
	Problems map[string][]Problem
	// LocalPodCIDRs is set (not nil) when this node's pod CIDRs are known or have changed.
	LocalPodCIDRs []netip.Prefix
}
