package watch

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type portReader struct {
	*Problems
	kind v1.ServiceType
	// Earlier ports of the Service use these values.
	names              map[string]bool
	numbers, nodePorts map[portNumber]bool
}

// portNumber must be unique among the ports of a Service.
type portNumber struct {
	protocol inet.Protocol
	number   int32
}

// A port that conflicts with an earlier port is not served.
func (c converter) servicePorts(specs []v1.ServicePort, kind v1.ServiceType, p *Problems) []model.ServicePort {
	r := portReader{
		Problems: p, kind: kind,
		names: make(map[string]bool, len(specs)), numbers: make(map[portNumber]bool, len(specs)), nodePorts: make(map[portNumber]bool),
	}
	ports := make([]model.ServicePort, 0, len(specs))
	for i := range specs {
		if port, ok := r.port(fmt.Sprintf("spec.ports[%d].", i), &specs[i]); ok {
			port.Name = c.names.name(port.Name)
			ports = append(ports, port)
		}
	}
	if len(ports) == 0 {
		p.Add("spec.ports", "", "has no usable port. The Service is not served")
	}
	return ports
}

func (r *portReader) port(path string, spec *v1.ServicePort) (port model.ServicePort, ok bool) {
	protocol, err := parseProtocol(string(spec.Protocol))
	key := portNumber{protocol, spec.Port}
	switch {
	case !validPort(spec.Port):
		r.Add(path+"port", decimal(spec.Port), "must be between 1 and 65535")
	case err != nil:
		r.Add(path+"protocol", string(spec.Protocol), "must be TCP, UDP or SCTP")
	case spec.Name != "" && len(validation.IsDNS1123Label(spec.Name)) > 0:
		r.Add(path+"name", spec.Name, "must be at most 63 lowercase letters, digits and '-'")
	case r.names[spec.Name]:
		r.Add(path+"name", spec.Name, "must be unique: EndpointSlices refer to a port by its name")
	case r.numbers[key]:
		r.Add(path+"port", decimal(spec.Port), "must be unique: another %v port of the Service uses it", protocol)
	default:
		r.names[spec.Name], r.numbers[key] = true, true
		return model.ServicePort{
			Name: spec.Name, Protocol: protocol, Port: uint16(spec.Port), NodePort: r.nodePort(path+"nodePort", spec.NodePort, protocol),
		}, true
	}
	return model.ServicePort{}, false
}

// nodePort returns the port on the nodes' addresses; 0 if there is none. A mistake in this field does not affect other
// addresses. Only type NodePort requires a node port, because a load balancer may forward packets with its own address as the
// destination.
func (r *portReader) nodePort(field string, number int32, protocol inet.Protocol) uint16 {
	const consequence = ". The port is not served on node addresses"
	key := portNumber{protocol, number}
	switch {
	case number == 0 && r.kind == v1.ServiceTypeNodePort:
		r.Add(field, "", "must be between 1 and 65535. An API server allocates one; a manifest must set it"+consequence)
	case number == 0:
	case r.kind == v1.ServiceTypeClusterIP:
		r.Add(field, decimal(number), "requires spec.type NodePort or LoadBalancer"+consequence)
	case !validPort(number):
		r.Add(field, decimal(number), "must be between 1 and 65535"+consequence)
	case r.nodePorts[key]:
		r.Add(field, decimal(number), "must be unique: another %v port of the Service uses it"+consequence, protocol)
	default:
		r.nodePorts[key] = true
		return uint16(number)
	}
	return 0
}

func validPort(number int32) bool { return 1 <= number && number <= 65535 }

func decimal(number int32) string { return strconv.Itoa(int(number)) }

func parseProtocol(s string) (inet.Protocol, error) {
	if s == "" {
		return inet.TCP, nil
	}
	return inet.ParseProtocol(s)
}
