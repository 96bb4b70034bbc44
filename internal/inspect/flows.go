package inspect

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// FlowNames contains the names of Services by frontend, and the names of pods by address.
type FlowNames struct {
	owners map[kernel.ServerKey]owner
	pods   map[netip.Addr]string
}

// FlowNamesOf returns the names in services. Clients may be pods of any Service in all.
func FlowNamesOf(services, all []view.Service) FlowNames {
	n := FlowNames{ownersOf(services), map[netip.Addr]string{}}
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

// Event describes a connection. It returns false if the connection leads to no Service.
func (n FlowNames) Event(e kernel.FlowEvent) (out view.FlowEvent, ok bool) {
	to, known := n.owners[e.Key]
	if !known {
		return out, false
	}
	out = view.FlowEvent{
		Time: e.At, Event: view.FlowNew, Namespace: to.service.Namespace, Name: to.service.Name, Port: to.frontend.Port, Protocol: e.Key.Protocol.String(),
		Client: e.Client, ClientPod: n.pods[e.Client.Addr()], Virtual: e.Key.Addr,
	}
	if e.Endpoint != e.Key.Addr {
		found := endpointOf(to.frontend, e.Endpoint)
		out.Endpoint, out.Pod, out.Node = e.Endpoint, found.Pod, found.Node
	}
	if !e.Ended {
		return out, true
	}
	out.Event, out.Answered = view.FlowEnded, &e.Answered
	if seconds := e.Lasted.Seconds(); seconds > 0 {
		out.Seconds = &seconds
	}
	if e.Counted {
		out.Packets, out.BytesIn, out.BytesOut = &e.Packets, &e.BytesIn, &e.BytesOut
	}
	return out, true
}

// FlowTitles returns the headings of the table of flows. Columns have fixed widths, because lines are printed one by
// one.
func FlowTitles() string {
	return flowLine("TIME", "EVENT", "SERVICE", "CLIENT", "ENDPOINT", "DETAILS")
}

// FlowLine returns a line of the table of flows.
func FlowLine(e view.FlowEvent) string {
	at := e.Time.Format("15:04:05.000")
	if e.Event == view.FlowsLost {
		return flowLine(at, e.Event, "", "", "", "the kernel's buffer was full; some events were lost")
	}
	service := fmt.Sprintf("%s/%s:%s", e.Namespace, e.Name, e.Port)
	if e.Port == "" {
		service = fmt.Sprintf("%s/%s %s", e.Namespace, e.Name, e.Virtual)
	}
	endpoint := "none"
	if e.Endpoint.IsValid() {
		endpoint = named(e.Pod, e.Endpoint)
	}
	return flowLine(at, e.Event, service+"/"+e.Protocol, named(e.ClientPod, e.Client), endpoint, flowDetails(e))
}

func flowDetails(e view.FlowEvent) string {
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
