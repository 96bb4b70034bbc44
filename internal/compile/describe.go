package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

var kinds = map[frontendKind]view.Kind{
	clusterIP: view.ClusterIP, loadBalancerIP: view.LoadBalancer, externalIP: view.ExternalIP, nodePort: view.NodePort,
}

// Addresses lists the addresses of the node's interfaces.
func (c *Cluster) Addresses() []netip.Addr { return slices.Clone(c.node.addresses) }

// Service returns a compiled Service, or false if it does not exist.
func (c *Cluster) Service(id model.ServiceID) (*Compiled, bool) {
	s := c.services[id]
	return s, s != nil
}

// AllServices iterates over the compiled Services in no particular order.
func (c *Cluster) AllServices(yield func(*Compiled) bool) {
	for _, s := range c.services {
		if !yield(s) {
			return
		}
	}
}

// Source returns the Service's input.
func (s *Compiled) Source() *model.Service { return s.service }

// Problems returns the parts of the Service that cannot be served.
func (s *Compiled) Problems() []model.Problem { return s.problems }

// HasAddress reports whether the Service requests a frontend at the address, whether or not it is served.
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

// Kinds iterates over the kind and the family of each frontend.
func (s *Compiled) Kinds(yield func(view.Kind, inet.Family) bool) {
	for i := range s.frontends {
		if !yield(kinds[s.frontends[i].kind], s.frontends[i].key.Family()) {
			return
		}
	}
}

// FrontendCount returns the number of frontends.
func (s *Compiled) FrontendCount() int { return len(s.frontends) }

// Frontends describes each frontend that the Service requests, without the kernel's state. Each description includes all endpoints of the
// port, even those that get no connections from the frontend. Frontends may share a list of endpoints.
func (s *Compiled) Frontends(yield func(view.Frontend, []Endpoint) bool) {
	to, ready, next := slicePortsOf(s.service), readinesses(nil), 0
	for _, group := range groupByPort(s.frontends) {
		port, family := s.service.Ports[group[0].port], group[0].key.Family()
		endpoints, _ := allEndpoints(to.of(port, family), s.node, s.refusedEndpoints)
		reason := ""
		if len(endpoints) == 0 {
			reason = idleReason(ready.of(s.service, family).unserved(port, family))
		}
		for _, f := range group {
			described := s.describe(f, s.decisions[next])
			if described.State == view.Served && len(endpoints) == 0 {
				described.State, described.Reason = view.NoEndpoints, reason
			}
			if !yield(described, endpoints) {
				return
			}
			next++
		}
	}
}

func (s *Compiled) describe(f frontend, d decision) view.Frontend {
	front := view.Frontend{
		Port: s.service.Ports[f.port].Name, Kind: kinds[f.kind], Address: f.key.Addr, Protocol: f.key.Protocol.String(), Bound: !f.ownAddress,
		Policy: "Cluster", Settings: s.settings(f, d),
	}
	if isLocal(s.service, f.kind) {
		front.Policy = "Local"
	}
	if f.kind == loadBalancerIP {
		front.SourceRanges = rangesOf(s.service, f.key.Family())
	}
	switch {
	case d.winner != s.service.ID:
		front.State, front.Owner = view.Conflict, d.winner.String()
		front.Reason = "Service " + front.Owner + " has the better claim to the same address, port and protocol"
	case d.guard == &noLocal:
		front.State, front.Reason = view.NoLocalEndpoints, "the internal traffic policy is Local, and no endpoint is on this node"
	case d.guard == &insideOnly:
		front.State, front.Reason = view.InternalOnly, "the external traffic policy is Local, and no endpoint is on this node"
	default:
		front.State = view.Served
	}
	return front
}

// idleReason explains why the ready endpoints of a Service do not serve a port. The result is empty if none is ready.
func idleReason(ready int, why string) string {
	switch {
	case why == "":
		return ""
	case ready == 1:
		return "1 endpoint is ready, but " + why
	}
	return fmt.Sprintf("%d endpoints are ready, but %s", ready, why)
}

func rangesOf(svc *model.Service, f inet.Family) []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range svc.SourceRanges {
		if inet.FamilyOf(r.Addr()) == f {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

const (
	byAnnotation = "annotation kube-ipvs.io/"
	byNode       = "node configuration"
)

type settings []view.Setting

func (s *settings) add(name, value, from string) {
	*s = append(*s, view.Setting{Name: name, Value: value, From: from})
}

func (s *Compiled) settings(f frontend, d decision) (all settings) {
	all.addScheduler(s, d)
	svc, b := s.service, s.service.Balancing
	if svc.AffinityTimeout > 0 {
		origin := "spec.sessionAffinity"
		if b.AffinitySet {
			origin = byAnnotation + "affinity-timeout"
		}
		all.add("affinity", svc.AffinityTimeout.String(), origin)
		if bits := clientBits(b, f.key.Family()); int(bits) != f.key.Family().Bits() {
			annotation := fmt.Sprintf("affinity-prefix-ipv%d", f.key.Family())
			all.add("affinity client", fmt.Sprintf("/%d", bits), byAnnotation+annotation)
		}
	} else {
		all.add("affinity", "none", "spec.sessionAffinity")
	}
	if d.flags&kernel.FlagOnePacket != 0 && !lacks(s.mode, "one-packet") {
		all.add("one packet", "true", byAnnotation+"one-packet")
	}
	if d.flags&(kernel.FlagProxyV1|kernel.FlagProxyV2) != 0 {
		all.add("PROXY protocol", proxyVersion(b), byAnnotation+"proxy-protocol")
	}
	if b.MaxConnections > 0 && !lacks(s.mode, "max-connections") {
		all.add("max connections", fmt.Sprint(b.MaxConnections), byAnnotation+"max-connections")
	}
	if b.ResumeConnections > 0 && !lacks(s.mode, "max-connections") {
		all.add("resume connections", fmt.Sprint(b.ResumeConnections), byAnnotation+"resume-connections")
	}
	all.addWeights(b.Weights)
	if b.SlowStart > 0 && !lacks(s.mode, "slow-start") {
		all.add("slow start", b.SlowStart.String(), byAnnotation+"slow-start")
	}
	all.addSpan(s, f)
	return all
}

// addScheduler adds what chooses the endpoint.
func (s *settings) addScheduler(of *Compiled, d decision) {
	if of.mode.NFTablesBalances() {
		s.add("scheduler", kernel.AtRandom, "nftables balances at random")
		return
	}
	s.add("scheduler", d.scheduler, of.schedulerOrigin(d.scheduler))
	if flags := flagNames(d); flags != "" {
		s.add("scheduler flags", flags, of.flagsOrigin())
	}
}

// addSpan adds the ports that share a client's affinity, if the Service requests one affinity for all ports.
func (s *settings) addSpan(of *Compiled, f frontend) {
	switch {
	case !of.service.Balancing.AllPorts || of.service.AffinityTimeout == 0:
	case of.sharesServer(f.key):
		s.add("affinity ports", "all", byAnnotation+"affinity-ports")
	case f.kind == nodePort:
		s.add("affinity ports", "each", "node ports differ from their target ports")
	default:
		s.add("affinity ports", "each", "not possible here")
	}
}

// addWeights adds the annotations that set weights. Each endpoint's description shows the resulting weight.
func (s *settings) addWeights(w model.Weights) {
	if w.DefaultSet {
		s.add("weight", fmt.Sprint(w.Default), byAnnotation+"weight")
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
			s.add("weight by "+by.what, strings.Join(texts, ","), byAnnotation+"weight-by-"+by.what)
		}
	}
}

func (s *Compiled) schedulerOrigin(inForce string) string {
	asked, chosen := s.service.Balancing.Scheduler, s.chosenScheduler
	origin := byNode
	switch {
	case s.mode == kernel.Userspace:
		return "the agent's process, which has no other"
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
