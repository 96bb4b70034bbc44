package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// labelProxyName is the label that assigns a Service to the proxy of that name. The EndpointSlice controllers copy the label to
// the slices of the Service.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// Proxy is the name of an agent's proxy. The agent serves the Services whose label has this value; an agent without a name
// serves the Services without the label, as kube-proxy does.
type Proxy string

func (p Proxy) serves(labels map[string]string) bool {
	name, labeled := labels[labelProxyName]
	return labeled == (p != "") && name == string(p)
}

func (p Proxy) selector() string {
	if p == "" {
		return "!" + labelProxyName
	}
	return labelProxyName + "=" + string(p)
}

// maxAffinity is the longest session affinity that the API server accepts.
const maxAffinity = 86400

// The API server also filters by the first two conditions, so that a Service that stops being eligible arrives as a deletion.
func (p Proxy) eligibleService(svc *v1.Service) bool {
	headless := svc.Spec.ClusterIP == v1.ClusterIPNone || slices.Contains(svc.Spec.ClusterIPs, v1.ClusterIPNone)
	return p.serves(svc.Labels) && !headless && svc.Spec.Type != v1.ServiceTypeExternalName
}

// A Service without a usable address or port is not served.
func (c converter) service(svc *v1.Service, origin string) *Record {
	r := newRecord(model.KindService, svc.Namespace, svc.Name)
	if !c.proxy.eligibleService(svc) {
		return r
	}
	id := model.ServiceID{Namespace: c.names.name(svc.Namespace), Name: svc.Name}
	p := &Problems{Object: r.Key(), Service: id, Origin: origin}
	kind := serviceType(svc, p)
	externalLocal := isLocal("spec.externalTrafficPolicy", svc.Spec.ExternalTrafficPolicy, p)
	s := &model.Service{
		ID: id,
		// Use UTC, so that the same instant in two time zones gives equal values.
		UID: string(svc.UID), Created: svc.CreationTimestamp.UTC(),
		ClusterIPs:      clusterIPs(svc, p),
		ExternalIPs:     externalIPs(svc, p),
		InternalLocal:   svc.Spec.InternalTrafficPolicy != nil && isLocal("spec.internalTrafficPolicy", *svc.Spec.InternalTrafficPolicy, p),
		ExternalLocal:   externalLocal,
		HealthCheckPort: healthCheckPort(svc, kind == v1.ServiceTypeLoadBalancer && externalLocal, p),
		AffinityTimeout: affinityTimeout(svc, p),
		Ports:           c.servicePorts(svc.Spec.Ports, kind, p),
	}
	setLoadBalancer(s, svc, kind, p)
	balancing(s, svc.Annotations, p)
	if len(s.ClusterIPs) > 0 && len(s.Ports) > 0 {
		r.Service = s
	}
	r.Problems = p.Done()
	return r
}

func serviceType(svc *v1.Service, p *Problems) v1.ServiceType {
	switch kind := svc.Spec.Type; kind {
	case v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer:
		return kind
	case "":
	default:
		p.Add("spec.type", string(kind), "must be ClusterIP, NodePort, LoadBalancer or ExternalName. The agent uses ClusterIP")
	}
	return v1.ServiceTypeClusterIP
}

func clusterIPs(svc *v1.Service, p *Problems) []netip.Addr {
	values, field := svc.Spec.ClusterIPs, "spec.clusterIPs"
	switch {
	case len(values) == 0 && svc.Spec.ClusterIP == "":
		p.Add("spec.clusterIP", "", "must be an IP address. An API server allocates one; a manifest must set it. The Service is not served")
		return nil
	case len(values) == 0:
		values, field = []string{svc.Spec.ClusterIP}, "spec.clusterIP"
	case svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != values[0]:
		p.Add("spec.clusterIP", svc.Spec.ClusterIP, "must equal spec.clusterIPs[0], which is %q. The agent uses spec.clusterIPs", clip(values[0], maxValue))
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
			p.Add(path, value, "%v", err)
		case inet.CheckUnicast(addr) != nil:
			p.Add(path, value, "must be an address in the Service range; this %v", inet.CheckUnicast(addr))
		case slices.ContainsFunc(addrs, func(o netip.Addr) bool { return inet.FamilyOf(o) == inet.FamilyOf(addr) }):
			p.Add(path, value, "must be of the other family: a Service can have only one %v address", inet.FamilyOf(addr))
		default:
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		p.Add(field, "", "has no usable address. The Service is not served")
	}
	return addrs
}

// affinityTimeout returns 0 if there is no session affinity.
func affinityTimeout(svc *v1.Service, p *Problems) time.Duration {
	const fallback = time.Duration(v1.DefaultClientIPServiceAffinitySeconds) * time.Second
	switch svc.Spec.SessionAffinity {
	case "", v1.ServiceAffinityNone:
		return 0
	case v1.ServiceAffinityClientIP:
	default:
		p.Add("spec.sessionAffinity", string(svc.Spec.SessionAffinity), "must be None or ClientIP. The agent uses None")
		return 0
	}
	config := svc.Spec.SessionAffinityConfig
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return fallback
	}
	seconds := *config.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > maxAffinity {
		p.Add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", strconv.Itoa(int(seconds)),
			"must be between 1 and %d. The agent uses %d", maxAffinity, v1.DefaultClientIPServiceAffinitySeconds)
		return fallback
	}
	return time.Duration(seconds) * time.Second
}
