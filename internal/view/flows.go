package view

import (
	"net/netip"
	"time"
)

// FlowEvent is one line of the flows command's output: the beginning or the end of a connection to a Service.
type FlowEvent struct {
	Time time.Time `json:"time"`
	// Event is NEW, ENDED or LOST. A LOST event means that the kernel had no room for some events. It has no
	// connection.
	Event     string `json:"event"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol,omitempty"`
	// ClientPod is the client's pod, if the client is an endpoint of a Service. Pod and Node belong to the endpoint.
	Client    netip.AddrPort `json:"client,omitzero"`
	ClientPod string         `json:"clientPod,omitempty"`
	Virtual   netip.AddrPort `json:"virtual,omitzero"`
	Endpoint  netip.AddrPort `json:"endpoint,omitzero"`
	Pod       string         `json:"pod,omitempty"`
	Node      string         `json:"node,omitempty"`
	// Answered is true if the endpoint has replied. Seconds and the counters exist only for ended connections, if
	// the kernel records them.
	Answered *bool    `json:"answered,omitempty"`
	Seconds  *float64 `json:"seconds,omitempty"`
	Packets  *uint64  `json:"packets,omitempty"`
	BytesIn  *uint64  `json:"bytesIn,omitempty"`
	BytesOut *uint64  `json:"bytesOut,omitempty"`
}

// The values of FlowEvent.Event.
const (
	FlowNew   = "NEW"
	FlowEnded = "ENDED"
	FlowsLost = "LOST"
)
