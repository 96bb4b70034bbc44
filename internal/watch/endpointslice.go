package watch

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// sliceServed is the eligibility of EndpointSlices. The API source has the server filter by the two labels as well.
// A slice that names no Service is somebody else's; one of names (FQDN) has nothing that IPVS could reach.
func (p Proxy) sliceServed(slice *discoveryv1.EndpointSlice) bool {
	_, headless := slice.Labels[v1.IsHeadlessService]
	return p.serves(slice.Labels) && !headless && slice.Labels[discoveryv1.LabelServiceName] != "" &&
		slice.AddressType != discoveryv1.AddressTypeFQDN
}

// endpointSlice parses an EndpointSlice.
func (c converter) endpointSlice(slice *discoveryv1.EndpointSlice, origin string) *record {
	r := newRecord(KindEndpointSlice, slice.Namespace, slice.Name)
	if !c.proxy.sliceServed(slice) {
		return r
	}
	r.owner = model.ServiceID{Namespace: c.names.name(slice.Namespace), Name: slice.Labels[discoveryv1.LabelServiceName]}
	p := &problems{object: r.key().String(), service: r.owner, origin: origin}
	if family, ok := familyOf(slice.AddressType); ok {
		r.slice = &model.EndpointSlice{
			Name:      slice.Name,
			Family:    family,
			Ports:     c.endpointPorts(slice.Ports, p),
			Endpoints: c.endpoints(slice, family, p),
		}
		r.trigger = triggerTime(slice)
	} else {
		p.add("addressType", string(slice.AddressType), "must be IPv4, IPv6 or FQDN. This slice is not used")
	}
	r.problems = p.done()
	return r
}

// triggerTime reads when the change was made that the slice shows. It is for a metric only, so a wrong one is no Problem.
func triggerTime(slice *discoveryv1.EndpointSlice) time.Time {
	at, err := time.Parse(time.RFC3339Nano, slice.Annotations[v1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return at
}

func familyOf(t discoveryv1.AddressType) (inet.Family, bool) {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return inet.IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return inet.IPv6, true
	}
	return 0, false
}

// endpointPorts reads the target ports. No number means "every port" in the API, which no proxy can serve: it is ignored.
func (c converter) endpointPorts(specs []discoveryv1.EndpointPort, p *problems) []model.EndpointPort {
	ports := make([]model.EndpointPort, 0, len(specs))
	names := make(map[string]bool, len(specs))
	for i, spec := range specs {
		if spec.Port == nil || *spec.Port == 0 {
			continue
		}
		var protocolName string
		if spec.Protocol != nil {
			protocolName = string(*spec.Protocol)
		}
		at := func(field string) string { return fmt.Sprintf("ports[%d].%s", i, field) }
		protocol, err := parseProtocol(protocolName)
		name := c.names.optional(spec.Name)
		switch {
		case *spec.Port < 0 || *spec.Port > 65535:
			p.add(at("port"), strconv.Itoa(int(*spec.Port)), "must be between 1 and 65535")
		case err != nil:
			p.add(at("protocol"), protocolName, "must be TCP, UDP or SCTP")
		case names[name]:
			p.add(at("name"), name, "must be a name that no other port of the slice has")
		default:
			names[name] = true
			ports = append(ports, model.EndpointPort{Name: name, Protocol: protocol, Port: uint16(*spec.Port)})
		}
	}
	return ports
}

// endpoints reads the endpoints. Of several addresses of one endpoint only the first counts, as for every proxy: the API
// calls them fungible.
func (c converter) endpoints(slice *discoveryv1.EndpointSlice, family inet.Family, p *problems) []model.Endpoint {
	endpoints := make([]model.Endpoint, 0, len(slice.Endpoints))
	for i := range slice.Endpoints {
		spec := &slice.Endpoints[i]
		if len(spec.Addresses) == 0 {
			p.add(fmt.Sprintf("endpoints[%d].addresses", i), "", "must hold an address. This endpoint is left out")
			continue
		}
		addr, err := parseAddr(spec.Addresses[0])
		var wrong string
		switch {
		case err != nil:
			wrong = err.Error()
		case inet.FamilyOf(addr) != family:
			wrong = fmt.Sprintf("must be an %v address, as the slice's addressType says", family)
		case inet.Unfit(addr) != "":
			wrong = "must be the address of a pod or a host; this " + inet.Unfit(addr)
		}
		if wrong != "" {
			p.add(fmt.Sprintf("endpoints[%d].addresses[0]", i), spec.Addresses[0], "%s. This endpoint is left out", wrong)
			continue
		}
		endpoint := c.endpoint(spec, slice.Namespace)
		endpoint.Addr = addr
		endpoints = append(endpoints, endpoint)
	}
	return endpoints
}

// endpoint reads all of an endpoint but its address. Conditions that are not said have the API's defaults.
func (c converter) endpoint(spec *discoveryv1.Endpoint, namespace string) model.Endpoint {
	ready := orElse(spec.Conditions.Ready, true)
	hints := spec.Hints
	if hints == nil {
		hints = &discoveryv1.EndpointHints{}
	}
	return model.Endpoint{
		Ready:       ready,
		Serving:     orElse(spec.Conditions.Serving, ready),
		Terminating: orElse(spec.Conditions.Terminating, false),
		Node:        c.names.optional(spec.NodeName),
		Zone:        c.names.optional(spec.Zone),
		Pod:         podName(spec.TargetRef, namespace),
		ForNodes:    hinted(c, hints.ForNodes, func(n discoveryv1.ForNode) string { return n.Name }),
		ForZones:    hinted(c, hints.ForZones, func(z discoveryv1.ForZone) string { return z.Name }),
	}
}

// hinted is the names in a list of hints, sorted and once each: their order says nothing.
func hinted[Hint any](c converter, hints []Hint, name func(Hint) string) []string {
	if len(hints) == 0 {
		return nil
	}
	names := make([]string, len(hints))
	for i, hint := range hints {
		names[i] = c.names.name(name(hint))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// podName is "namespace/name" of the pod behind an endpoint; "" if there is none.
func podName(ref *v1.ObjectReference, namespace string) string {
	if ref == nil || ref.Kind != "Pod" || ref.Name == "" {
		return ""
	}
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	return namespace + "/" + ref.Name
}

func orElse(b *bool, fallback bool) bool {
	if b == nil {
		return fallback
	}
	return *b
}
