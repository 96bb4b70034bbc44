package draw

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Kinds of changes. Any two consecutive transitions include every kind.
const (
	EndpointsChanged = "endpoints redrawn"
	CharacterChanged = "type, ports, policies and addresses redrawn"
	ServiceRemoved   = "Service removed"
	ServiceAdded     = "Service added"
	ZoneChanged      = "node in another zone"
	AddressMoved     = "another node gains or loses a load balancer's address"
	StraysChanged    = "slices of nonexistent Services redrawn"
	NodePortsMoved   = "nodePortAddresses changed (with a restart)"
)

// Kinds lists the kinds of changes in the order of the report.
var Kinds = []string{EndpointsChanged, CharacterChanged, ServiceRemoved, ServiceAdded, ZoneChanged, AddressMoved, StraysChanged, NodePortsMoved}

// Change returns a changed copy of a set, and the number of changes of each kind.
func (d *Drawer) Change(before Set) (after Set, counts map[string]int) {
	d.changed++
	after, counts = before.Clone(), map[string]int{}
	n := len(after.Services)
	for _, i := range d.some(after, max(1, n/8)) {
		counts[EndpointsChanged]++
		d.moveEndpoints(&after.Services[i])
	}
	for _, i := range d.some(after, max(1, n/12)) {
		counts[CharacterChanged]++
		d.redraw(after.Services[i].Object)
		d.moveEndpoints(&after.Services[i])
		d.take(after.Services[i])
	}
	for range max(1, n/30) {
		i := d.rng.IntN(len(after.Services))
		after.Services = slices.Delete(after.Services, i, i+1)
		counts[ServiceRemoved]++
		after.Services = append(after.Services, d.keep(d.service()))
		counts[ServiceAdded]++
	}
	d.changeNodes(&after, counts)
	after.Strays, after.NodePorts = d.strays(), d.nodePortSetting()
	counts[StraysChanged]++
	if !slices.Equal(after.NodePorts, before.NodePorts) {
		counts[NodePortsMoved]++
	}
	return after, counts
}

func (d *Drawer) some(set Set, n int) []int {
	var picked []int
	for _, i := range d.rng.Perm(len(set.Services)) {
		if len(picked) < n && set.Services[i].Served() {
			picked = append(picked, i)
		}
	}
	return picked
}

func (d *Drawer) moveEndpoints(svc *Service) {
	svc.Slices = d.slices(svc.Object)
	rename(*svc, svc.Object.Name)
}

func (d *Drawer) redraw(o *corev1.Service) {
	o.Spec.Type = one(d, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	d.character(o)
}

// changeNodes moves the first node to another zone. It also adds or removes a load balancer's address on another
// node.
func (d *Drawer) changeNodes(set *Set, counts map[string]int) {
	here, other := &set.Nodes[0], &set.Nodes[len(set.Nodes)-1]
	here.Zone = map[string]string{"zone-a": "zone-b", "zone-b": "", "": "zone-a"}[here.Zone]
	counts[ZoneChanged]++
	own := d.world.OtherNode().External
	other.External = slices.Clone(own)
	for _, svc := range set.Services {
		for _, in := range svc.Object.Status.LoadBalancer.Ingress {
			if in.IP != "" && len(other.External) == len(own) && d.chance(50) {
				other.External = append(other.External, netip.MustParseAddr(in.IP))
				counts[AddressMoved]++
			}
		}
	}
}
