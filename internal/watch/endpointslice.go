package watch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// The API server also filters by both labels. A slice without a Service name is not meant for proxies; a slice of names (FQDN) has no
// addresses for IPVS.
func (p Proxy) eligibleSlice(slice *discoveryv1.EndpointSlice) bool {
	_, headless := slice.Labels[v1.IsHeadlessService]
	return p.serves(slice.Labels) && !headless && slice.Labels[discoveryv1.LabelServiceName] != "" &&
		slice.AddressType != discoveryv1.AddressTypeFQDN
}

func (c converter) endpointSlice(slice *discoveryv1.EndpointSlice, origin string) *Record {
	r := newRecord(model.KindEndpointSlice, slice.Namespace, slice.Name)
	if !c.proxy.eligibleSlice(slice) {
		return r
	}
	r.owner = model.ServiceID{Namespace: c.names.name(slice.Namespace), Name: slice.Labels[discoveryv1.LabelServiceName]}
	p := &Problems{Object: r.Key(), Service: r.owner, Origin: origin}
	if family, ok := familyOf(slice.AddressType); ok {
		r.Slice = &model.EndpointSlice{
			Name:      slice.Name,
			Family:    family,
			Ports:     c.endpointPorts(slice.Ports, p),
			Endpoints: c.endpoints(slice, family, p),
		}
		r.trigger = triggerTime(slice)
	} else {
		p.Add("addressType", string(slice.AddressType), "must be IPv4, IPv6 or FQDN. The slice is not used")
	}
	r.Problems = p.Done()
	return r
}

// Only a metric uses the trigger time, so a wrong value is not a Problem.
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

// A port without a number means "all ports" in the API. No proxy can serve all ports, so the port is ignored.
func (c converter) endpointPorts(specs []discoveryv1.EndpointPort, p *Problems) []model.EndpointPort {
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
			p.Add(at("port"), strconv.Itoa(int(*spec.Port)), "must be between 1 and 65535")
		case err != nil:
			p.Add(at("protocol"), protocolName, "must be TCP, UDP or SCTP")
		case names[name]:
			p.Add(at("name"), name, "must be unique among the ports of the slice")
		default:
			names[name] = true
			ports = append(ports, model.EndpointPort{Name: name, Protocol: protocol, Port: uint16(*spec.Port)})
		}
	}
	return ports
}

// endpoints uses only the first address of an endpoint, like every proxy. According to the API, the addresses are fungible.
func (c converter) endpoints(slice *discoveryv1.EndpointSlice, family inet.Family, p *Problems) []model.Endpoint {
	endpoints := make([]model.Endpoint, 0, len(slice.Endpoints))
	for i := range slice.Endpoints {
		spec := &slice.Endpoints[i]
		if len(spec.Addresses) == 0 {
			p.Add(fmt.Sprintf("endpoints[%d].addresses", i), "", "must have an address. The endpoint is not used")
			continue
		}
		addr, err := parseAddr(spec.Addresses[0])
		var wrong string
		switch {
		case err != nil:
			wrong = err.Error()
		case inet.FamilyOf(addr) != family:
			wrong = fmt.Sprintf("must be an %v address, the addressType of the slice", family)
		case !addr.IsLoopback() && inet.CheckUnicast(addr) != nil: // compile decides on loopback addresses
			wrong = fmt.Sprintf("must be the address of a pod or host; this %v", inet.CheckUnicast(addr))
		}
		if wrong != "" {
			p.Add(fmt.Sprintf("endpoints[%d].addresses[0]", i), spec.Addresses[0], "%s. The endpoint is not used", wrong)
			continue
		}
		endpoint := c.endpoint(spec, slice.Namespace)
		endpoint.Addr = addr
		endpoints = append(endpoints, endpoint)
	}
	// Sort here, because otherwise compile would have to sort all endpoints of a Service whenever one of them changes.
	slices.SortStableFunc(endpoints, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return endpoints
}

// Missing conditions get the API's defaults.
func (c converter) endpoint(spec *discoveryv1.Endpoint, namespace string) model.Endpoint {
	return model.Endpoint{
		Ready:       orElse(spec.Conditions.Ready, true),
		Serving:     orElse(spec.Conditions.Serving, true),
		Terminating: orElse(spec.Conditions.Terminating, false),
		Node:        c.names.optional(spec.NodeName),
		Zone:        c.names.optional(spec.Zone),
		Pod:         podName(spec.TargetRef, namespace),
		Hints:       c.hints(spec.Hints),
	}
}

func (c converter) hints(hints *discoveryv1.EndpointHints) *model.Hints {
	if hints == nil || len(hints.ForNodes)+len(hints.ForZones) == 0 {
		return nil
	}
	return &model.Hints{
		ForNodes: hinted(c, hints.ForNodes, func(n discoveryv1.ForNode) string { return n.Name }),
		ForZones: hinted(c, hints.ForZones, func(z discoveryv1.ForZone) string { return z.Name }),
	}
}

// hinted returns the names sorted and without duplicates, because the order of hints has no meaning.
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

func podName(ref *v1.ObjectReference, namespace string) string {
	if ref == nil || ref.Kind != "Pod" || ref.Name == "" {
		return ""
	}
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	return strings.ToValidUTF8(namespace+"/"+ref.Name, "?")
}

func orElse(b *bool, fallback bool) bool {
	if b == nil {
		return fallback
	}
	return *b
}
