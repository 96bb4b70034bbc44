package model

import (
	"slices"
	"strings"
	"time"
)

// MaxWeight is the kernel's limit for the weight of a destination.
const MaxWeight = 1<<31 - 1

// MaxConnectionLimit is the highest connection limit that all kernels accept for a destination.
const MaxConnectionLimit = 1<<31 - 1

// Balancing contains the balancing annotations of a Service. The zero value means that the node's configuration
// applies.
type Balancing struct {
	Scheduler string
	Flags     SchedulerFlags
	// FlagsSet is true if an annotation sets the scheduler's flags.
	FlagsSet bool
	// AffinitySet is true if the Service's AffinityTimeout comes from an annotation instead of spec.sessionAffinity.
	AffinitySet bool
	// ClientBits4 and ClientBits6 are prefix lengths; 0 means the full address. Affinity treats all clients within a
	// prefix as one client.
	ClientBits4, ClientBits6 uint8
	// AllPorts extends affinity to all ports of a protocol: a client reaches the same endpoint on each port.
	AllPorts bool
	// OnePacket balances every datagram separately.
	OnePacket bool
	// ProxyProtocol is the version of the PROXY protocol header that TCP connections to endpoints begin with; 0 for none.
	ProxyProtocol uint8
	// MaxConnections is the connection limit of an endpoint, or 0 for none. An endpoint at the limit receives new
	// connections again when it has fewer than ResumeConnections. If ResumeConnections is 0, the kernel chooses the
	// threshold.
	MaxConnections, ResumeConnections uint32
	Weights                           Weights
	// SlowStart is the time over which the weight of a new endpoint rises to its full value.
	SlowStart time.Duration
}

// Weights are the weights of a Service's endpoints. A pod's weight takes precedence over its node's weight, which takes
// precedence over its zone's weight. Default applies if none of these is set.
type Weights struct {
	Default uint32
	// DefaultSet is false if the default weight is 1 because no annotation sets it.
	DefaultSet bool
	// Zones, Nodes and Pods (namespace/name) are sorted by name.
	Zones, Nodes, Pods []NamedWeight
}

// NamedWeight is the weight of the endpoints of a zone, node or pod.
type NamedWeight struct {
	Name   string
	Weight uint32
}

// MayDiffer reports whether endpoints that accept connections could have different weights.
func (w Weights) MayDiffer() bool {
	return slices.ContainsFunc(slices.Concat(w.Zones, w.Nodes, w.Pods), func(n NamedWeight) bool { return n.Weight > 0 })
}

// Of returns the weight of an endpoint, before it is multiplied by its node's weight.
func (w *Weights) Of(e *Endpoint) uint32 {
	if len(w.Pods)+len(w.Nodes)+len(w.Zones) > 0 {
		for _, by := range []struct {
			list []NamedWeight
			name string
		}{{w.Pods, e.Pod}, {w.Nodes, e.Node}, {w.Zones, e.Zone}} {
			i, found := slices.BinarySearchFunc(by.list, by.name, func(n NamedWeight, name string) int { return strings.Compare(n.Name, name) })
			if found && by.name != "" {
				return by.list[i].Weight
			}
		}
	}
	if w.DefaultSet {
		return w.Default
	}
	return 1
}
