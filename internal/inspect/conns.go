package inspect

import (
	"cmp"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// ConnectionList is the JSON document of the command conns.
type ConnectionList struct {
	view.Header
	Agent   bool         `json:"agent"`
	Unknown []string     `json:"unknown"`
	Items   []Connection `json:"items"`
}

// Connection is a connection that IPVS tracks or, where nftables balances, conntrack.
type Connection struct {
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name,omitempty"`
	Port      string         `json:"port,omitempty"`
	Protocol  string         `json:"protocol"`
	Client    netip.AddrPort `json:"client"`
	Virtual   netip.AddrPort `json:"virtual"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	Pod       string         `json:"pod,omitempty"`
	Node      string         `json:"node,omitempty"`
	State     string         `json:"state"`
	// Affinity is true for a persistence template, which binds a client to its endpoint.
	Affinity bool   `json:"affinity"`
	Expires  uint64 `json:"expiresSeconds"`
}

// Selects reports whether a virtual server belongs to one of the Services.
func (l ServiceList) Selects() func(kernel.ServerKey) bool {
	owners := ownersOf(l.Items)
	return func(key kernel.ServerKey) bool {
		_, is := owners[key]
		return is
	}
}

// Connections joins the kernel's connections with the Services of a list. It omits connections of other virtual
// servers.
func Connections(conns []kernel.Connection, services ServiceList) ConnectionList {
	owners := ownersOf(services.Items)
	list := ConnectionList{
		Header: view.HeaderOf("ConnectionList"), Agent: services.Agent, Unknown: services.Unknown, Items: []Connection{},
	}
	for _, c := range conns {
		protocol, err := inet.ParseProtocol(c.Protocol)
		o, known := owners[kernel.ServerKey{Addr: c.Virtual, Protocol: protocol}]
		if err != nil || !known {
			continue
		}
		endpoint := endpointOf(o.frontend, c.Destination)
		if c.Virtual.Port() == 0 { // affinity for all ports: look up the pod by address alone
			endpoint = endpointOf(o.frontend, netip.AddrPortFrom(c.Destination.Addr(), o.frontend.Address.Port()))
			o.frontend.Port = ""
		}
		list.Items = append(list.Items, Connection{
			Namespace: o.service.Namespace, Name: o.service.Name, Port: o.frontend.Port, Protocol: protocol.String(),
			Client: c.Client, Virtual: c.Virtual, Endpoint: c.Destination, Pod: endpoint.Pod, Node: endpoint.Node,
			State: c.State, Affinity: c.Client.Port() == 0, Expires: c.Expires,
		})
	}
	slices.SortStableFunc(list.Items, compareConnections)
	return list
}

func compareConnections(a, b Connection) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), a.Virtual.Compare(b.Virtual),
		strings.Compare(a.Protocol, b.Protocol), a.Client.Compare(b.Client))
}

// PrintConnections writes a line for each connection.
func PrintConnections(w io.Writer, list ConnectionList, form Table) error {
	t := newTable("NAMESPACE", "NAME", "PROTOCOL", "CLIENT", "VIRTUAL", "ENDPOINT", "POD", "STATE", "EXPIRES")
	if form.Wide {
		t.add("PORT", "NODE")
	}
	for _, c := range list.Items {
		client, state := c.Client.String(), c.State
		if c.Affinity {
			client, state = c.Client.Addr().String(), "AFFINITY"
		}
		row := []string{
			c.Namespace, c.Name, c.Protocol, client, c.Virtual.String(), c.Endpoint.String(), c.Pod, state, expiry(c.Expires),
		}
		if form.Wide {
			row = append(row, c.Port, c.Node)
		}
		t.row(row...)
	}
	return t.writeAs(w, form)
}

// expiry returns "-" for a TCP connection that the agent's process forwards, which does not expire, and for one that IPVS is about to remove.
func expiry(seconds uint64) string {
	if seconds == 0 {
		return "-"
	}
	return strconv.FormatUint(seconds, 10) + "s"
}
