package view

import (
	"cmp"
	"net/netip"
)

// ForwardedPort is a port at which the data plane in user space serves a Service.
type ForwardedPort struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      string `json:"port"`
	Protocol  string `json:"protocol"`
	// Address is where clients connect.
	Address netip.AddrPort `json:"address"`
	// Serves is the frontend that the address stands for: a ClusterIP with its port, or a node port.
	Serves string `json:"serves"`
	// Endpoints is the number of endpoints that get new clients.
	Endpoints int `json:"endpoints"`
	// ProxyProtocol is the version of the PROXY protocol header that connections to endpoints begin with; 0 for none.
	ProxyProtocol int       `json:"proxyProtocol,omitempty"`
	State         PortState `json:"state"`
	Reason        string    `json:"reason,omitempty"`
}

// PortState is the state of a ForwardedPort.
type PortState string

// The states of a port. A port with the state PortClosed is shown once, after its Service has changed.
const (
	PortListening PortState = "Listening"
	PortFailed    PortState = "Failed"
	PortClosed    PortState = "Closed"
)

// SamePort reports whether two values describe the same port of a Service at the same address.
func (p ForwardedPort) SamePort(o ForwardedPort) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.Port == o.Port && p.Protocol == o.Protocol && p.Address == o.Address
}

// Compare orders ports by Service and port.
func (p ForwardedPort) Compare(o ForwardedPort) int {
	return cmp.Or(cmp.Compare(p.Namespace, o.Namespace), cmp.Compare(p.Name, o.Name), cmp.Compare(p.Port, o.Port), cmp.Compare(p.Protocol, o.Protocol),
		p.Address.Compare(o.Address))
}
