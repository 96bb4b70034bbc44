package compile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// readiness contains the EndpointSlice ports and the number of ready endpoints of one family. It is computed at most once for all ports of a Service.
type readiness struct {
	ready, otherFamily int
	names              []string // port names of slices with a ready endpoint, sorted
}

// readinesses contains the readiness of a Service in each family. The map is filled as needed.
type readinesses map[inet.Family]readiness

func (known *readinesses) of(svc *model.Service, f inet.Family) readiness {
	r, ok := (*known)[f]
	if !ok {
		if *known == nil {
			*known = readinesses{}
		}
		r = readReadiness(svc, f)
		(*known)[f] = r
	}
	return r
}

func readReadiness(svc *model.Service, family inet.Family) (r readiness) {
	for _, slice := range svc.Slices {
		n := readyIn(slice)
		switch {
		case n == 0:
		case slice.Family != family:
			r.otherFamily += n
		default:
			r.ready += n
			for _, p := range slice.Ports {
				r.names = append(r.names, portName(p))
			}
		}
	}
	slices.Sort(r.names)
	r.names = slices.Compact(r.names)
	return r
}

// unserved returns the number of ready endpoints that do not serve a port in a family, and the reason. The reason is empty if no endpoint
// is ready, or if ready endpoints have the port.
func (r readiness) unserved(port model.ServicePort, family inet.Family) (ready int, reason string) {
	wanted := portName(model.EndpointPort{Name: port.Name, Protocol: port.Protocol})
	_, has := slices.BinarySearch(r.names, wanted)
	switch {
	case r.ready == 0 && r.otherFamily > 0:
		return r.otherFamily, fmt.Sprintf("none has an %s address", family)
	case r.ready > 0 && len(r.names) == 0:
		return r.ready, "the EndpointSlices have no ports"
	case r.ready > 0 && !has:
		return r.ready, fmt.Sprintf("none has a port %s; the ports of the EndpointSlices are %s", wanted, shortList(r.names))
	}
	return 0, ""
}

// maxNames limits the number of names in a Problem, which becomes an Event.
const maxNames = 10

func shortList(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

func readyIn(slice *model.EndpointSlice) (n int) {
	for i := range slice.Endpoints {
		if slice.Endpoints[i].Ready {
			n++
		}
	}
	return n
}

// unservedProblems returns the Problems of ports that are closed although endpoints are ready. The text contains no numbers, so that every node posts
// the same Event, and a rollout does not change it.
func unservedProblems(svc *model.Service, index int, family inet.Family, eps portEndpoints, known *readinesses) []model.Problem {
	if len(eps.all) > 0 {
		return nil
	}
	port := svc.Ports[index]
	ready := known.of(svc, family)
	_, reason := ready.unserved(port, family)
	switch {
	case reason == "":
		return nil
	case ready.ready == 0:
		return []model.Problem{problem(svc, "spec.ipFamilies", family.String(),
			"endpoints are ready, but "+reason+". New connections to the Service's "+family.String()+" addresses are refused",
			"use pods with addresses of both families, or remove the family from the Service")}
	}
	return []model.Problem{problem(svc, fmt.Sprintf("spec.ports[%d].name", index), port.Name,
		"endpoints are ready, but "+reason+". New connections to the port are refused",
		"use the same port names in the Service and in its EndpointSlices; with a selector, check targetPort")}
}
