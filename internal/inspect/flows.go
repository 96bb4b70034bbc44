package inspect

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// FlowEvent is a line of the command flows: the beginning or the end of a connection to a Service.
type FlowEvent struct {
	Time time.Time `json:"time"`
	// Event is NEW, ENDED, or LOST if the kernel had no room for some events; a LOST event has no connection.
	Event     string `json:"event"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol,omitempty"`
	// ClientPod is the client if it is an endpoint of a Service; Pod and Node are those of the endpoint.
	Client    netip.AddrPort `json:"client,omitzero"`
	ClientPod string         `json:"clientPod,omitempty"`
	Virtual   netip.AddrPort `json:"virtual,omitzero"`
	Endpoint  netip.AddrPort `json:"endpoint,omitzero"`
	Pod       string         `json:"pod,omitempty"`
	Node      string         `json:"node,omitempty"`
	// Answered is true if the endpoint has replied. Seconds and the counters are those of an ended connection, if the kernel records them.
	Answered *bool    `json:"answered,omitempty"`
	Seconds  *float64 `json:"seconds,omitempty"`
	Packets  *uint64  `json:"packets,omitempty"`
	BytesIn  *uint64  `json:"bytesIn,omitempty"`
	BytesOut *uint64  `json:"bytesOut,omitempty"`
}

// The events.
const (
	FlowNew   = "NEW"
	FlowEnded = "ENDED"
	FlowsLost = "LOST"
)

// FlowNames has the names of the Services and pods that connections lead to and come from.
type FlowNames struct {
	frontends map[kernel.ServerKey]flowTarget
	pods      map[netip.Addr]string
}

type flowTarget struct {
	service  view.Service
	frontend view.Frontend
}

// FlowNamesOf collects the names in the Services of an agent. Connections to other Services have none. Clients may be endpoints of any Service
// among all.
func FlowNamesOf(services, all []view.Service) FlowNames {
	n := FlowNames{map[kernel.ServerKey]flowTarget{}, map[netip.Addr]string{}}
	for _, s := range services {
		for _, f := range s.Frontends {
			if f.State != view.Conflict && f.State != view.ForeignServer {
				n.frontends[keyOf(f)] = flowTarget{s, f}
			}
		}
	}
	for _, s := range all {
		for _, f := range s.Frontends {
			for _, e := range f.Endpoints {
				if e.Pod != "" {
					n.pods[e.Address.Addr()] = e.Pod
				}
			}
		}
	}
	return n
}

// Event describes a connection. It returns false for one that leads to no Service.
func (n FlowNames) Event(e kernel.FlowEvent, now time.Time) (out FlowEvent, ok bool) {
	to, known := n.frontends[e.Key]
	if !known {
		return out, false
	}
	out = FlowEvent{
		Time: now, Event: FlowNew, Namespace: to.service.Namespace, Name: to.service.Name, Port: to.frontend.Port, Protocol: e.Key.Protocol.String(),
		Client: e.Client, ClientPod: n.pods[e.Client.Addr()], Virtual: e.Key.Addr,
	}
	if e.Endpoint != e.Key.Addr { // the connection has an endpoint
		found := endpointOf(to.frontend, e.Endpoint)
		out.Endpoint, out.Pod, out.Node = e.Endpoint, found.Pod, found.Node
	}
	if !e.Ended {
		return out, true
	}
	out.Event, out.Answered = FlowEnded, &e.Answered
	if seconds := e.Lasted.Seconds(); seconds > 0 {
		out.Seconds = &seconds
	}
	if e.Counted {
		out.Packets, out.BytesIn, out.BytesOut = &e.Packets, &e.BytesIn, &e.BytesOut
	}
	return out, true
}

// FlowTitles are the titles of the table of flows. Its columns have fixed widths, because the lines are printed one by one.
func FlowTitles() string {
	return flowLine("TIME", "EVENT", "SERVICE", "CLIENT", "ENDPOINT", "DETAILS")
}

// String is the line of the table.
func (e FlowEvent) String() string {
	at := e.Time.Format("15:04:05.000")
	if e.Event == FlowsLost {
		return flowLine(at, e.Event, "", "", "", "the kernel had no room for some events")
	}
	service := fmt.Sprintf("%s/%s:%s", e.Namespace, e.Name, e.Port)
	if e.Port == "" {
		service = fmt.Sprintf("%s/%s %s", e.Namespace, e.Name, e.Virtual)
	}
	endpoint := "none"
	if e.Endpoint.IsValid() {
		endpoint = named(e.Pod, e.Endpoint)
	}
	return flowLine(at, e.Event, service+"/"+e.Protocol, named(e.ClientPod, e.Client), endpoint, e.details())
}

func (e FlowEvent) details() string {
	var parts []string
	if e.Answered != nil && !*e.Answered {
		parts = append(parts, "no answer")
	}
	if e.Seconds != nil {
		parts = append(parts, fmt.Sprintf("%.1f s", *e.Seconds))
	}
	if e.Packets != nil {
		parts = append(parts, fmt.Sprintf("%d packets, %s bytes in, %s out", *e.Packets, short(float64(*e.BytesIn)), short(float64(*e.BytesOut))))
	}
	return strings.Join(parts, ", ")
}

func named(pod string, at netip.AddrPort) string {
	if pod == "" {
		return at.String()
	}
	return fmt.Sprintf("%s (%s)", pod, at)
}

func flowLine(cells ...string) string {
	widths := []int{12, 6, 36, 44, 44, 0}
	line := ""
	for i, c := range cells {
		line += fmt.Sprintf("%-*s  ", widths[i], finding.Printable(c))
	}
	return strings.TrimRight(line, " ")
}
