package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Description says how a Service was compiled, and from what, for whoever looks at it.
type Description struct {
	Service  *model.Service
	Fronts   []FrontDescription
	Problems []model.Problem
}

// FrontDescription is one address and port of a Service.
type FrontDescription struct {
	Key  kernel.ServerKey
	Kind string
	Port model.ServicePort
	// Bound says that the address is put on kube-ipvs0.
	Bound bool
	// Local says that the policy in force is Local; Guard names the set of the guard that stands before the port, if any.
	Local bool
	Guard Guard
	// Winner has the claim to this place.
	Winner   model.ServiceID
	Settings []Setting
	// Endpoints are all in the Service's slices, those of other clients too.
	Endpoints []EndpointDescription
}

// Guard is who is kept away from a front.
type Guard uint8

// The guards.
const (
	NoGuard Guard = iota
	GuardAll
	GuardOutside
)

// EndpointDescription is an endpoint of a front.
type EndpointDescription struct {
	Addr netip.AddrPort
	*model.Endpoint
	// Used says that it is among the virtual server's destinations.
	Used bool
}

// Setting is a value in force, and where it comes from.
type Setting struct{ Name, Value, From string }

var frontKinds = map[frontKind]string{
	clusterIP: "ClusterIP", loadBalancerIP: "LoadBalancer", externalIP: "ExternalIP", nodePort: "NodePort",
}

// IDs lists the Services, sorted.
func (c *Cluster) IDs() []model.ServiceID {
	return slices.SortedFunc(maps.Keys(c.services), model.ServiceID.Compare)
}

// Addresses are the node's own.
func (c *Cluster) Addresses() []netip.Addr { return slices.Clone(c.node.addresses) }

// HasAddress says whether a Service has a front at the address, whoever wins it.
func (c *Cluster) HasAddress(id model.ServiceID, addr netip.Addr) bool {
	s := c.services[id]
	return s != nil && slices.ContainsFunc(s.fronts, func(f front) bool { return f.key.Addr.Addr() == addr })
}

// Describe describes a Service; one that is not known has no Service.
func (c *Cluster) Describe(id model.ServiceID) Description {
	s := c.services[id]
	if s == nil {
		return Description{}
	}
	d := Description{Service: s.service, Problems: s.problems}
	for _, group := range groupByPort(s.fronts) {
		port := s.service.Ports[group[0].port]
		b := backendsOf(s.service, port, group[0].key.Family(), &c.node)
		for _, f := range group {
			d.Fronts = append(d.Fronts, c.describeFront(s.service, f, b))
		}
	}
	return d
}

func (c *Cluster) describeFront(svc *model.Service, f front, b backends) FrontDescription {
	chosen, guard := choose(svc, f.kind, b)
	d := FrontDescription{
		Key: f.key, Kind: frontKinds[f.kind], Port: svc.Ports[f.port], Bound: !f.own,
		Local:    f.kind == clusterIP && svc.InternalLocal || f.kind != clusterIP && svc.ExternalLocal,
		Winner:   c.winner(f.key),
		Settings: append(describeBalancing(svc, f.key, destinations(svc, chosen, &c.node), &c.node), c.describeSpan(svc, f)...),
	}
	switch {
	case guard == &noLocal:
		d.Guard = GuardAll
	case guard == &insideOnly:
		d.Guard = GuardOutside
	}
	for _, t := range b.all {
		used := slices.ContainsFunc(chosen, func(o target) bool { return o.addr == t.addr })
		d.Endpoints = append(d.Endpoints, EndpointDescription{Addr: t.addr, Endpoint: t.endpoint, Used: used})
	}
	return d
}

const (
	byAnnotation = "annotation kube-ipvs.io/"
	byNode       = "node configuration"
)

// describeBalancing says where what serverConfig decides comes from.
func describeBalancing(svc *model.Service, key kernel.ServerKey, ds []kernel.Destination, n *nodeContext) []Setting {
	server := serverConfig(svc, key, ds, n)
	settings := []Setting{{"scheduler", server.Scheduler, schedulerOrigin(svc, server.Scheduler, n)}}
	if flags := flagNames(server); flags != "" {
		settings = append(settings, Setting{"scheduler flags", flags, flagsOrigin(svc, n)})
	}
	b := svc.Balancing
	if svc.AffinityTimeout > 0 {
		origin := "spec.sessionAffinity"
		if b.AffinitySet {
			origin = byAnnotation + "affinity-timeout"
		}
		settings = append(settings, Setting{"affinity", svc.AffinityTimeout.String(), origin})
		if bits := clientBits(b, key.Family()); int(bits) != key.Family().Bits() {
			annotation := fmt.Sprintf("affinity-prefix-ipv%d", key.Family())
			settings = append(settings, Setting{"affinity client", fmt.Sprintf("/%d", bits), byAnnotation + annotation})
		}
	} else {
		settings = append(settings, Setting{"affinity", "none", "spec.sessionAffinity"})
	}
	if server.Flags&kernel.FlagOnePacket != 0 {
		settings = append(settings, Setting{"one packet", "true", byAnnotation + "one-packet"})
	}
	if b.MaxConnections > 0 {
		settings = append(settings, Setting{"max connections", fmt.Sprint(b.MaxConnections), byAnnotation + "max-connections"})
	}
	if b.ResumeConnections > 0 {
		settings = append(settings, Setting{"resume connections", fmt.Sprint(b.ResumeConnections), byAnnotation + "resume-connections"})
	}
	settings = append(settings, describeWeights(b.Weights)...)
	if b.SlowStart > 0 {
		settings = append(settings, Setting{"slow start", b.SlowStart.String(), byAnnotation + "slow-start"})
	}
	return settings
}

// describeSpan says what one affinity spans, where the Service asks for more than a port.
func (c *Cluster) describeSpan(svc *model.Service, f front) []Setting {
	if !svc.Balancing.AllPorts || svc.AffinityTimeout == 0 {
		return nil
	}
	span := Setting{"affinity ports", "all", byAnnotation + "affinity-ports"}
	if c.state.ServerOf(f.key) == f.key && !c.state.Lingers(f.key) {
		span.Value, span.From = "each", "not possible here"
		if f.kind == nodePort {
			span.From = "node ports differ from their target ports"
		}
	}
	return []Setting{span}
}

// describeWeights names the annotations that give weights; what comes of them is told with each endpoint.
func describeWeights(w model.Weights) []Setting {
	var settings []Setting
	if w.DefaultSet {
		settings = append(settings, Setting{"weight", fmt.Sprint(w.Default), byAnnotation + "weight"})
	}
	for _, by := range []struct {
		what string
		list []model.NamedWeight
	}{{"zone", w.Zones}, {"node", w.Nodes}, {"pod", w.Pods}} {
		var texts []string
		for _, n := range by.list {
			texts = append(texts, fmt.Sprintf("%s=%d", n.Name, n.Weight))
		}
		if len(texts) > 0 {
			settings = append(settings, Setting{"weight by " + by.what, strings.Join(texts, ","), byAnnotation + "weight-by-" + by.what})
		}
	}
	return settings
}

func schedulerOrigin(svc *model.Service, inForce string, n *nodeContext) string {
	asked, chosen := svc.Balancing.Scheduler, chosenScheduler(svc, n)
	origin := byNode
	switch {
	case asked != "" && asked != chosen:
		origin += ", because this kernel has no " + asked
	case asked == "" && chosen != n.Scheduler:
		origin = "last resort, because this kernel has no " + n.Scheduler
	case asked != "":
		origin = byAnnotation + "scheduler"
	}
	if inForce != chosen {
		origin += fmt.Sprintf(" says %s, which knows no weights", chosen)
	}
	return origin
}

func flagNames(s kernel.Server) string {
	var names []string
	for i, name := range model.SchedulerNamed(s.Scheduler).Flags {
		if s.Flags&(kernel.FlagSched1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func flagsOrigin(svc *model.Service, n *nodeContext) string {
	if svc.Balancing.FlagsSet && chosenScheduler(svc, n) == svc.Balancing.Scheduler {
		return byAnnotation + "scheduler-flags"
	}
	return "usual for this scheduler"
}
