package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Frontend is one address and port of a Service, and the decisions about it.
type Frontend struct {
	Key  kernel.ServerKey
	Kind string
	Port model.ServicePort
	// Bound is true if the address is bound to kube-ipvs0.
	Bound bool
	// Local is true if the traffic policy in effect is Local.
	Local bool
	Guard Guard
	// Winner is the Service with the best claim to the frontend.
	Winner   model.ServiceID
	Settings []Setting
	// Endpoints are all endpoints in the Service's slices, including those that get no connections from this frontend.
	Endpoints []EndpointDescription
	// Idle counts the ready endpoints if none serves the port, and IdleReason says why.
	Idle       int
	IdleReason string
}

// EndpointDescription is an endpoint of a frontend.
type EndpointDescription struct {
	Addr netip.AddrPort
	*model.Endpoint
}

// Setting is an effective value and its origin.
type Setting struct{ Name, Value, From string }

var kindNames = map[frontendKind]string{
	clusterIP: "ClusterIP", loadBalancerIP: "LoadBalancer", externalIP: "ExternalIP", nodePort: "NodePort",
}

// Addresses lists the addresses of the node's interfaces.
func (c *Cluster) Addresses() []netip.Addr { return slices.Clone(c.node.addresses) }

// Service returns a compiled Service, or false if it does not exist.
func (c *Cluster) Service(id model.ServiceID) (*Compiled, bool) {
	s := c.services[id]
	return s, s != nil
}

// AllServices iterates over the compiled Services, in no order.
func (c *Cluster) AllServices(yield func(*Compiled) bool) {
	for _, s := range c.services {
		if !yield(s) {
			return
		}
	}
}

// Source returns the Service's input.
func (s *Compiled) Source() *model.Service { return s.service }

// Problems returns what the Service asks for and cannot be served.
func (s *Compiled) Problems() []model.Problem { return s.problems }

// HasAddress reports whether the Service asks for a frontend at the address, served or not.
func (s *Compiled) HasAddress(addr netip.Addr) bool {
	return slices.ContainsFunc(s.frontends, func(f frontend) bool { return f.key.Addr.Addr() == addr })
}

// Keys iterates over the frontends' addresses and ports, in the order of Frontends.
func (s *Compiled) Keys(yield func(kernel.ServerKey) bool) {
	for i := range s.frontends {
		if !yield(s.frontends[i].key) {
			return
		}
	}
}

// FrontendCount returns the number of frontends.
func (s *Compiled) FrontendCount() int { return len(s.frontends) }

// Frontends lists the addresses and ports that the Service asks for. Each call builds a new list.
func (s *Compiled) Frontends() []Frontend {
	all := make([]Frontend, 0, len(s.frontends))
	to, ready := slicePortsOf(s.service), readinesses(nil)
	for _, group := range groupByPort(s.frontends) {
		port, family := s.service.Ports[group[0].port], group[0].key.Family()
		endpoints := s.describeEndpoints(to.of(port, family))
		idle, reason := 0, ""
		if len(endpoints) == 0 {
			idle, reason = ready.of(s.service, family).unserved(port, family)
		}
		for _, f := range group {
			described := s.describe(f, s.decisions[len(all)])
			described.Endpoints, described.Idle, described.IdleReason = endpoints, idle, reason
			all = append(all, described)
		}
	}
	return all
}

func (s *Compiled) describe(f frontend, d decision) Frontend {
	return Frontend{
		Key: f.key, Kind: kindNames[f.kind], Port: s.service.Ports[f.port], Bound: !f.ownAddress,
		Local:    isLocal(s.service, f.kind),
		Guard:    d.guard,
		Winner:   d.winner,
		Settings: append(s.describeBalancing(f.key, d), s.describeSpan(f)...),
	}
}

func (s *Compiled) describeEndpoints(from slicePorts) []EndpointDescription {
	all := allEndpoints(from, s.node, s.refusedEndpoints)
	descriptions := make([]EndpointDescription, len(all))
	for i, e := range all {
		descriptions[i] = EndpointDescription{Addr: e.addr, Endpoint: e.Endpoint}
	}
	return descriptions
}

const (
	byAnnotation = "annotation kube-ipvs.io/"
	byNode       = "node configuration"
)

// describeBalancing lists the settings of a virtual server with their origins.
func (s *Compiled) describeBalancing(key kernel.ServerKey, d decision) []Setting {
	settings := []Setting{{"scheduler", d.scheduler, s.schedulerOrigin(d.scheduler)}}
	if flags := flagNames(d); flags != "" {
		settings = append(settings, Setting{"scheduler flags", flags, s.flagsOrigin()})
	}
	svc, b := s.service, s.service.Balancing
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
	if d.flags&kernel.FlagOnePacket != 0 {
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

// describeSpan returns which ports share a client's affinity, if the Service asks for all.
func (s *Compiled) describeSpan(f frontend) []Setting {
	if !s.service.Balancing.AllPorts || s.service.AffinityTimeout == 0 {
		return nil
	}
	span := Setting{"affinity ports", "all", byAnnotation + "affinity-ports"}
	if !s.sharesServer(f.key) {
		span.Value, span.From = "each", "not possible here"
		if f.kind == nodePort {
			span.From = "node ports differ from their target ports"
		}
	}
	return []Setting{span}
}

// describeWeights lists the annotations that set weights. The resulting weight is shown with each endpoint.
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

func (s *Compiled) schedulerOrigin(inForce string) string {
	asked, chosen := s.service.Balancing.Scheduler, s.chosenScheduler
	origin := byNode
	switch {
	case asked != "" && asked != chosen:
		origin += s.whyNot(asked)
	case asked == "" && chosen != s.nodeScheduler:
		origin = "last resort" + s.whyNot(s.nodeScheduler)
	case asked != "":
		origin = byAnnotation + "scheduler"
	}
	if inForce != chosen {
		origin += fmt.Sprintf(" says %s, which ignores weights", chosen)
	}
	return origin
}

func (s *Compiled) whyNot(scheduler string) string {
	if tablesTooLarge(s.service, scheduler) {
		return ", because the Service has too many virtual servers for " + scheduler
	}
	return ", because this kernel has no " + scheduler
}

func flagNames(d decision) string {
	var names []string
	for i, name := range model.SchedulerNamed(d.scheduler).Flags {
		if d.flags&(kernel.FlagSched1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func (s *Compiled) flagsOrigin() string {
	if b := s.service.Balancing; b.FlagsSet && s.chosenScheduler == b.Scheduler {
		return byAnnotation + "scheduler-flags"
	}
	return "default of this scheduler"
}
