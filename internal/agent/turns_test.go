package agent_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// manyAddresses is a Service with so many virtual servers that one change takes many parts.
func manyAddresses(endpoints ...string) *model.Service {
	svc := compiletest.Service("large", "10.96.0.66", endpoints...)
	for i := range 6000 {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
	}
	return svc
}

// manyPorts is a Service with as many virtual servers at one address.
func manyPorts(endpoints ...string) *model.Service {
	svc := compiletest.Service("large", "10.96.0.66", endpoints...)
	svc.Ports = nil
	for i := range 4000 {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: "http", Protocol: inet.TCP, Port: uint16(1000 + i)})
	}
	return svc
}

// I14: while the agent writes the changes of a Service with thousands of virtual servers, a change of another Service waits for the
// part that is being written, and is in the next one.
func TestOtherChangesAreInTheNextPart(t *testing.T) {
	for name, change := range map[string][2]*model.Service{
		"new endpoints at many addresses": {manyAddresses("10.244.0.1"), manyAddresses("10.244.0.2", "10.244.0.3")},
		"new endpoints of many ports":     {manyPorts("10.244.0.1"), manyPorts("10.244.0.2", "10.244.0.3")},
		"many new addresses":              {compiletest.Service("large", "10.96.0.66", "10.244.0.1"), manyAddresses("10.244.0.1")},
		"many removed ports":              {manyPorts("10.244.0.1"), compiletest.Service("large", "10.96.0.66", "10.244.0.1")},
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.unwatched = true
				w.fake.OnOp(nil)
				w.put(change[0], web("10.244.0.1"))
				w.start()
				others := web("10.244.0.1", "10.244.7.7")
				written, waited := 0, 0
				w.fake.OnOp(func(op kernel.Op, _ error) {
					if written++; written == 1 {
						w.source.put(all(others))
					}
					if d, ok := op.Object.(kernel.ServerDestination); ok && d.Server == webKey {
						waited = written
					}
				})
				w.put(change[1])
				w.services[others.ID] = others
				w.fake.OnOp(nil)
				if waited == 0 || waited > 2*agent.MaxPart || written <= 2*agent.MaxPart {
					t.Errorf("of %d operations, the other Service's was number %d", written, waited)
				}
				w.sleep(2 * time.Minute)
				w.is()
			})
		})
	}
}
