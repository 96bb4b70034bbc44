package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// The agent writes a change to this Service in many parts.
func manyAddresses(endpoints ...string) *model.Service {
	svc := compiletest.Service("large", "10.96.0.66", endpoints...)
	for i := range 6000 {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
	}
	return svc
}

func manyPorts(endpoints ...string) *model.Service {
	svc := compiletest.Service("large", "10.96.0.66", endpoints...)
	svc.Ports = nil
	for i := range 4000 {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: "http", Protocol: inet.TCP, Port: uint16(1000 + i)})
	}
	return svc
}

// I14: while the agent is updating a Service with thousands of virtual servers, another Service's change waits only
// for the current part.
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
					t.Errorf("the other Service's operation was number %[2]d of %[1]d", written, waited)
				}
				w.sleep(2 * time.Minute)
				w.is()
			})
		})
	}
}

// A change to a medium-sized Service is applied even if smaller Services change all the time. Half of each part is
// reserved for changes that have been waiting.
func TestSmallChangesDelayNoneForEver(t *testing.T) {
	weighing := func(name, clusterIP string, endpoints int, weight uint32) *model.Service {
		svc := compiletest.Service(name, clusterIP)
		svc.Balancing.Scheduler, svc.Balancing.Weights = "wrr", model.Weights{Default: weight, DefaultSet: true}
		for i := range endpoints {
			svc.Slices[0].Endpoints = append(svc.Slices[0].Endpoints, compiletest.Ready(compiletest.Pod(i)))
		}
		return svc
	}
	small := func(weight uint32) services {
		changed := services{}
		for i := range 12 {
			svc := weighing(fmt.Sprint("small-", i), fmt.Sprint("10.97.0.", i+1), agent.MaxPart/9, weight)
			changed[svc.ID] = svc
		}
		return changed
	}
	for _, endpoints := range []int{agent.MaxPart / 8, agent.MaxPart} {
		calmBubble(t, func(w *world) {
			w.unwatched = true
			w.fake.OnOp(nil)
			for _, svc := range small(1) {
				w.put(svc)
			}
			w.put(weighing("middling", "10.96.0.5", endpoints, 1))
			w.start()
			written, waited := 0, 0
			w.fake.OnOp(func(op kernel.Op, _ error) {
				if written++; written == 1 {
					w.source.put(all(weighing("middling", "10.96.0.5", endpoints, 2)))
				}
				if written%1000 == 1 && written < 50*agent.MaxPart && waited == 0 {
					w.source.put(small(uint32(written + 1)))
				}
				if d, ok := op.Object.(kernel.ServerDestination); ok && d.Server.Addr.Addr() == netip.MustParseAddr("10.96.0.5") && waited == 0 {
					waited = written
				}
			})
			w.change(small(2))
			if waited == 0 || waited > 5*agent.MaxPart {
				t.Errorf("the first operation of a Service with %[2]d operations was number %[3]d of %[1]d", written, endpoints, waited)
			}
		})
	}
}

// unhurried is a kernel in which each operation takes a millisecond.
type unhurried struct{ agent.Kernel }

func (k unhurried) Apply(ctx context.Context, ops []kernel.Op) []error {
	time.Sleep(time.Duration(len(ops)) * time.Millisecond)
	return k.Kernel.Apply(ctx, ops)
}

// A sync may take longer than the timeout of health checks. Therefore the agent signals after each part that it is
// alive.
func TestLongSyncIsNoHungLoop(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.unwatched = true
		w.fake.OnOp(nil)
		w.kernel = unhurried{w.fake}
		w.put(compiletest.Service("large", "10.96.0.66", "10.244.0.1"))
		var last time.Time
		longest := time.Duration(0)
		w.config.Checked = func(now time.Time) { longest, last = max(longest, now.Sub(last)), now }
		w.start()
		last = time.Now()
		w.put(manyAddresses("10.244.0.1"))
		w.sleep(50 * time.Second) // before the next audit
		took := time.Duration(0)
		for _, r := range w.takeReports() {
			took, longest = max(took, r.Duration), max(longest, r.Started.Add(r.Duration).Sub(last))
		}
		if part := 2 * agent.MaxPart * time.Millisecond; longest > part || took < 2*part {
			t.Errorf("no sign of life for %v during a sync of %v", longest, took)
		}
	})
}

// Lingering virtual servers do not make changes to other Services more expensive.
func TestLingeringServersCostNothing(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.unwatched = true
		w.fake.OnOp(nil)
		lingering := func(all bool) *model.Service {
			svc := manyAddresses("10.244.0.9")
			svc.Ports[0].Port, svc.Slices[0].Ports[0].Port = 80, 80
			svc.AffinityTimeout, svc.Balancing.AllPorts = time.Hour, all
			return svc
		}
		w.put(lingering(false), web("10.244.0.1"))
		w.start()
		w.put(lingering(true))
		before, _, _ := usage()
		w.put(web("10.244.0.1", "10.244.7.7"))
		if after, _, _ := usage(); after-before > 1000 {
			t.Errorf("the lingering virtual servers cause %d additional allocations", after-before)
		}
	})
}
