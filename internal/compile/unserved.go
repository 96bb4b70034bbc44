package compile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Unserved counts the ready endpoints of a Service that do not serve a port in a family, and says why they do not. The reason is empty
// if no endpoint is ready, or if ready endpoints have the port.
func Unserved(svc *model.Service, port model.ServicePort, family inet.Family) (ready int, reason string) {
	otherFamily := 0
	var names []string
	for _, slice := range svc.Slices {
		n := readyIn(slice)
		switch {
		case n == 0:
		case slice.Family != family:
			otherFamily += n
		default:
			ready += n
			for _, p := range slice.Ports {
				names = append(names, portName(p))
			}
		}
	}
	wanted := portName(model.EndpointPort{Name: port.Name, Protocol: port.Protocol})
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case ready == 0 && otherFamily > 0:
		return otherFamily, fmt.Sprintf("none has an %s address", family)
	case ready > 0 && len(names) == 0:
		return ready, "the EndpointSlices have no ports"
	case ready > 0 && !slices.Contains(names, wanted):
		return ready, fmt.Sprintf("none has a port %s; the ports of the EndpointSlices are %s", wanted, strings.Join(names, ", "))
	}
	return 0, ""
}

func readyIn(slice *model.EndpointSlice) (n int) {
	for i := range slice.Endpoints {
		if slice.Endpoints[i].Ready {
			n++
		}
	}
	return n
}

// portName is the name by which a Service port selects the ports of its endpoints.
func portName(p model.EndpointPort) string {
	if p.Name == "" {
		return "unnamed/" + p.Protocol.String()
	}
	return p.Name + "/" + p.Protocol.String()
}

// unservedProblems says that a port is closed although endpoints are ready. The text has no numbers: every node posts the same Event, and
// a rollout does not change it.
func unservedProblems(svc *model.Service, index int, family inet.Family, eps endpoints) []model.Problem {
	if len(eps.all) > 0 {
		return nil
	}
	port := svc.Ports[index]
	_, reason := Unserved(svc, port, family)
	switch {
	case reason == "":
		return nil
	case !slices.ContainsFunc(svc.Slices, func(s *model.EndpointSlice) bool { return s.Family == family && readyIn(s) > 0 }):
		return []model.Problem{problem(svc, "spec.ipFamilies", family.String(),
			"endpoints are ready, but "+reason+". New connections to the Service's "+family.String()+" addresses are refused",
			"use pods with addresses of both families, or remove the family from the Service")}
	}
	return []model.Problem{problem(svc, fmt.Sprintf("spec.ports[%d].name", index), port.Name,
		"endpoints are ready, but "+reason+". New connections to the port are refused",
		"use the same port names in the Service and in its EndpointSlices; with a selector, check targetPort")}
}
