package model

import "time"

// MaxWeight is the kernel's limit for the weight of a destination.
const MaxWeight = 1<<31 - 1

// Balancing is what the annotations of a Service say about how its connections are shared out. The zero value leaves everything
// to the node's configuration.
type Balancing struct {
	Scheduler string
	// Flags are the scheduler's settings; FlagsSet tells none from not said.
	Flags    SchedulerFlags
	FlagsSet bool
	// AffinitySet says that an annotation gave the Service's AffinityTimeout, and not spec.sessionAffinity.
	AffinitySet bool
	// ClientBits4 and ClientBits6 are how many bits of a client's address make it one client for affinity; 0 means all.
	ClientBits4, ClientBits6 uint8
	// AllPorts makes one affinity of those of all ports of a protocol at a virtual address.
	AllPorts bool
	// OnePacket balances every datagram on its own.
	OnePacket bool
	// MaxConnections stops new connections to an endpoint that has so many, until it has ResumeConnections; 0 means no limit,
	// and the kernel's choice of when to resume.
	MaxConnections, ResumeConnections uint32
	Weights                           Weights
	// SlowStart is how long the weight of a new endpoint takes to rise to its full value.
	SlowStart time.Duration
}

// Weights are the shares of endpoints. The most specific one counts: the pod's, else its node's, else its zone's, else Default.
type Weights struct {
	// Default is for all endpoints; DefaultSet tells 0 from not said, which is 1.
	Default    uint32
	DefaultSet bool
	// Zones, Nodes and Pods (namespace/name) are sorted by name.
	Zones, Nodes, Pods []NamedWeight
}

// NamedWeight is the weight of the endpoints of one zone or node, or of one pod.
type NamedWeight struct {
	Name   string
	Weight uint32
}

// Of returns the weight of an endpoint, before its node's own factor.
func (w Weights) Of(e *Endpoint) uint32 {
	for _, by := range []struct {
		list []NamedWeight
		name string
	}{{w.Pods, e.Pod}, {w.Nodes, e.Node}, {w.Zones, e.Zone}} {
		for _, n := range by.list {
			if by.name != "" && n.Name == by.name {
				return n.Weight
			}
		}
	}
	if w.DefaultSet {
		return w.Default
	}
	return 1
}
