package snapshot

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// noEndpointsReason explains why ready endpoints of a Service do not serve one of its frontends; empty if none is ready.
func noEndpointsReason(svc *model.Service, f compile.Frontend) string {
	var ready, otherFamily int
	var names []string
	for _, slice := range svc.Slices {
		n := 0
		for i := range slice.Endpoints {
			if slice.Endpoints[i].Ready {
				n++
			}
		}
		switch {
		case n == 0:
		case slice.Family != f.Key.Family():
			otherFamily += n
		default:
			ready += n
			for _, p := range slice.Ports {
				names = append(names, portName(p))
			}
		}
	}
	wanted := model.EndpointPort{Name: f.Port.Name, Protocol: f.Port.Protocol}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case ready == 0 && otherFamily > 0:
		return fmt.Sprintf("%s ready, but none has an %s address", count(otherFamily), f.Key.Family())
	case ready > 0 && len(names) == 0:
		return fmt.Sprintf("%s ready, but without any port", count(ready))
	case ready > 0 && !slices.Contains(names, portName(wanted)):
		return fmt.Sprintf("%s ready, but without a port %s; the ports of the EndpointSlices are %s",
			count(ready), portName(wanted), strings.Join(names, ", "))
	}
	return ""
}

func count(n int) string {
	if n == 1 {
		return "1 endpoint is"
	}
	return fmt.Sprintf("%d endpoints are", n)
}

// portName is the name by which a Service port selects the ports of its endpoints.
func portName(p model.EndpointPort) string {
	if p.Name == "" {
		return "unnamed/" + p.Protocol.String()
	}
	return p.Name + "/" + p.Protocol.String()
}
