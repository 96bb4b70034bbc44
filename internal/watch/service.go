package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// labelProxyName, with any value, gives a Service to another proxy. The slice controllers copy it to the Service's slices.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// maxAffinity is the longest session affinity that the API server accepts.
const maxAffinity = 86400

// serviceServed is the eligibility of Services. The API source has the server filter by the first two as well, so that what
// stops being eligible arrives as a deletion.
func serviceServed(svc *v1.Service) bool {
	_, othersProxy := svc.Labels[labelProxyName]
	headless := svc.Spec.ClusterIP == v1.ClusterIPNone || slices.Contains(svc.Spec.ClusterIPs, v1.ClusterIPNone)
	return !othersProxy && !headless && svc.Spec.Type != v1.ServiceTypeExternalName
}

// service parses a Service. One without any usable address or port is not served at all.
func (c converter) service(svc *v1.Service, origin string) *record {
	r := newRecord(KindService, svc.Namespace, svc.Name)
	if !serviceServed(svc) {
		return r
	}
	id := model.ServiceID{Namespace: c.names.name(svc.Namespace), Name: svc.Name}
	p := &problems{object: r.key().String(), service: id, origin: origin}
	s := &model.Service{
		ID: id,
		// UTC: two sources that spell the same instant in different zones must give equal values.
		UID: string(svc.UID), Created: svc.CreationTimestamp.UTC(),
		ClusterIPs:      clusterIPs(svc, p),
		AffinityTimeout: affinityTimeout(svc, p),
		Ports:           c.servicePorts(svc.Spec.Ports, p),
	}
	if len(s.ClusterIPs) > 0 && len(s.Ports) > 0 {
		r.service = s
	}
	r.problems = p.done()
	return r
}

// clusterIPs reads the Service's addresses, at most one of a family.
func clusterIPs(svc *v1.Service, p *problems) []netip.Addr {
	values, field := svc.Spec.ClusterIPs, "spec.clusterIPs"
	switch {
	case len(values) == 0 && svc.Spec.ClusterIP == "":
		p.add("spec.clusterIP", "", "must be an IP address: the API server allocates it in a cluster, but in a manifest it has to be written. "+
			"This Service is not served")
		return nil
	case len(values) == 0:
		values, field = []string{svc.Spec.ClusterIP}, "spec.clusterIP"
	case svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != values[0]:
		p.add("spec.clusterIP", svc.Spec.ClusterIP, "must equal spec.clusterIPs[0], which is %q and is used", clip(values[0], maxValue))
	}
	var addrs []netip.Addr
	for i, value := range values {
		path := field
		if field == "spec.clusterIPs" {
			path = fmt.Sprintf("%s[%d]", field, i)
		}
		addr, err := parseAddr(value)
		switch {
		case err != nil:
			p.add(path, value, "%v", err)
		case unfit(addr) != "":
			p.add(path, value, "must be an address of the Service range; this %s", unfit(addr))
		case slices.ContainsFunc(addrs, func(o netip.Addr) bool { return inet.FamilyOf(o) == inet.FamilyOf(addr) }):
			p.add(path, value, "must be of the other family: a Service has at most one %v address", inet.FamilyOf(addr))
		default:
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		p.add(field, "", "has no usable address. This Service is not served")
	}
	return addrs
}

// servicePorts reads the Service's ports; a port that clashes with an earlier one is left out.
func (c converter) servicePorts(specs []v1.ServicePort, p *problems) []model.ServicePort {
	ports := make([]model.ServicePort, 0, len(specs))
	names := make(map[string]bool, len(specs))
	numbers := make(map[model.ServicePort]bool, len(specs))
	for i, spec := range specs {
		at := func(field string) string { return fmt.Sprintf("spec.ports[%d].%s", i, field) }
		protocol, err := parseProtocol(string(spec.Protocol))
		number := model.ServicePort{Protocol: protocol, Port: uint16(spec.Port)}
		switch {
		case spec.Port < 1 || spec.Port > 65535:
			p.add(at("port"), strconv.Itoa(int(spec.Port)), "must be between 1 and 65535")
		case err != nil:
			p.add(at("protocol"), string(spec.Protocol), "must be TCP, UDP or SCTP")
		case spec.Name != "" && len(validation.IsDNS1123Label(spec.Name)) > 0:
			p.add(at("name"), spec.Name, "must be lower case letters, digits and '-', at most 63 of them")
		case names[spec.Name]:
			p.add(at("name"), spec.Name, "must be a name that no other port of the Service has: slices tell ports by name")
		case numbers[number]:
			p.add(at("port"), strconv.Itoa(int(spec.Port)), "must be a port that the Service does not have yet with %v", protocol)
		default:
			names[spec.Name], numbers[number] = true, true
			ports = append(ports, model.ServicePort{Name: c.names.name(spec.Name), Protocol: protocol, Port: uint16(spec.Port)})
		}
	}
	if len(ports) == 0 {
		p.add("spec.ports", "", "has no usable port. This Service is not served")
	}
	return ports
}

// affinityTimeout is how long a client stays with its endpoint; 0 means that it does not.
func affinityTimeout(svc *v1.Service, p *problems) time.Duration {
	const fallback = time.Duration(v1.DefaultClientIPServiceAffinitySeconds) * time.Second
	switch svc.Spec.SessionAffinity {
	case "", v1.ServiceAffinityNone:
		return 0
	case v1.ServiceAffinityClientIP:
	default:
		p.add("spec.sessionAffinity", string(svc.Spec.SessionAffinity), "must be None or ClientIP; None is used")
		return 0
	}
	config := svc.Spec.SessionAffinityConfig
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return fallback
	}
	seconds := *config.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > maxAffinity {
		p.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", strconv.Itoa(int(seconds)),
			"must be between 1 and %d; %d is used", maxAffinity, v1.DefaultClientIPServiceAffinitySeconds)
		return fallback
	}
	return time.Duration(seconds) * time.Second
}

// parseProtocol reads a protocol; none means TCP.
func parseProtocol(s string) (inet.Protocol, error) {
	if s == "" {
		return inet.TCP, nil
	}
	return inet.ParseProtocol(s)
}
