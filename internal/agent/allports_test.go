package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

var (
	shopHTTP = tcp("10.96.0.1:80")
	shopDNS  = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: inet.UDP}
	shopTCP  = shopHTTP.AllPorts()
	shopUDP  = shopDNS.AllPorts()
)

// shop returns a Service with affinity, whose ports equal their target ports: TCP 80 and 443, UDP 53.
func shop(endpoints ...string) *model.Service {
	svc := sticky(compiletest.Service("shop", "10.96.0.1", endpoints...))
	svc.Ports, svc.Slices[0].Ports = nil, nil
	for name, key := range map[string]kernel.ServerKey{"http": shopHTTP, "https": tcp("10.96.0.1:443"), "dns": shopDNS} {
		port := key.Addr.Port()
		svc.Ports = append(svc.Ports, model.ServicePort{Name: name, Protocol: key.Protocol, Port: port})
		svc.Slices[0].Ports = append(svc.Slices[0].Ports, model.EndpointPort{Name: name, Protocol: key.Protocol, Port: port})
	}
	return svc
}

func together(svc *model.Service) *model.Service {
	svc.Balancing.AllPorts = true
	return svc
}

func (w *world) open(key kernel.ServerKey, dest string, n uint32) {
	w.fake.SetConnections(key, netip.MustParseAddrPort(dest), n, 0)
}

func (w *world) stand(keys map[kernel.ServerKey]bool) {
	w.Helper()
	servers := w.fake.State().Servers
	for key, want := range keys {
		if _, exists := servers[key]; exists != want {
			w.Errorf("%s exists: %t, want %t\n%s", key, exists, want, w.fake.Dump())
		}
	}
}

// A Service changes from one affinity per port to one for all ports. A port with open connections keeps its virtual
// server, even across restarts, and this virtual server still follows the Service's changes. The other ports do not
// wait. UDP flows move immediately.
func TestAllPortsWaitForOpenConnections(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(shop("10.244.0.1"))
		w.start()
		w.open(shopHTTP, "10.244.0.1:80", 2)
		w.put(together(shop("10.244.0.1")))
		w.sleep(drainInterval + time.Second)
		changing := map[kernel.ServerKey]bool{shopHTTP: true, tcp("10.96.0.1:443"): false, shopDNS: false, shopTCP: true, shopUDP: true}
		w.stand(changing)
		w.put(together(shop("10.244.0.1", "10.244.0.2")))
		if !w.has("-a -t 10.96.0.1:80 -r 10.244.0.2:80 -m -w 1") {
			w.Errorf("the lingering virtual server lacks the new endpoint:\n%s", w.fake.Dump())
		}
		w.restart()
		w.audit()
		w.sleep(drainInterval)
		w.stand(changing)
		for _, r := range w.takeReports() {
			if r.Drift > 0 || len(r.Leftovers.Servers) > 0 {
				w.Errorf("drift %d, leftovers %v: %v", r.Drift, r.Leftovers.Servers, done(r))
			}
		}
		w.open(shopHTTP, "10.244.0.1:80", 0)
		w.sleep(drainInterval + time.Second)
		w.is()
	})
}

func TestEachPortWaitsForOpenConnections(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(together(shop("10.244.0.1", "10.244.0.2")))
		w.start()
		w.is()
		w.open(shopTCP, "10.244.0.1:0", 1)
		w.open(shopTCP, "10.244.0.2:0", 1)
		w.put(shop("10.244.0.1", "10.244.0.2"))
		w.restart()
		w.put(shop("10.244.0.1"))
		w.stand(map[kernel.ServerKey]bool{shopHTTP: true, shopTCP: true, shopUDP: false})
		for _, line := range []string{"-a -t 10.96.0.1:0 -r 10.244.0.1:0 -m -w 1", "-a -t 10.96.0.1:0 -r 10.244.0.2:0 -m -w 0", "KIPVS-4-ALL-PORTS 10.96.0.1"} {
			if !w.has(line) {
				w.Errorf("no %q:\n%s", line, w.fake.Dump())
			}
		}
		w.open(shopTCP, "10.244.0.1:0", 0)
		w.open(shopTCP, "10.244.0.2:0", 0)
		w.sleep(2 * (drainInterval + time.Second))
		w.is()
	})
}

// The wait has no time limit, so that no connection is broken.
func TestAllPortsWaitWithoutLimit(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(shop("10.244.0.1"))
		w.start()
		w.open(shopHTTP, "10.244.0.1:80", 1)
		w.put(together(shop("10.244.0.1")))
		w.sleep(2 * drainTimeout)
		w.stand(map[kernel.ServerKey]bool{shopHTTP: true})
		w.damage(func(f *kerneltest.Fake) error { return f.DelServer(shopHTTP) })
		w.audit()
		w.is()
	})
}

func TestLingeringEndsWithItsService(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(shop("10.244.0.1"))
		w.start()
		w.open(shopHTTP, "10.244.0.1:80", 1)
		w.put(together(shop("10.244.0.1")))
		w.remove("shop")
		w.is()
	})
}

// An all-ports server at a node's address would receive packets for the node's own ports.
func TestAllPortsLeaveTheNodesAddress(t *testing.T) {
	calmBubble(t, func(w *world) {
		svc := together(shop("10.244.0.1"))
		svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
		w.put(svc)
		w.start()
		w.move(compiletest.At("192.0.2.1", "203.0.113.1"))
		w.is()
	})
}

func TestAllPortsAfterKubeProxy(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.damage(func(f *kerneltest.Fake) error {
			return errors.Join(
				leftover(f),
				f.AddAddress(kernel.BoundAddress{Addr: shopHTTP.Addr.Addr()}),
				f.AddServer(serverAt(shopHTTP), to("10.244.9.9:80", 1)),
				f.AddServer(serverAt(shopDNS), to("10.244.9.9:53", 1)),
			)
		})
		w.put(together(shop("10.244.0.1")))
		w.start()
		w.sleep(2 * (drainInterval + time.Second))
		w.is(leftover)
	})
}

func TestEndOfLingeringIsNotDrift(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(shop("10.244.0.1"))
		w.start()
		w.open(shopHTTP, "10.244.0.1:80", 1)
		w.put(together(shop("10.244.0.1")))
		w.sleep(auditInterval - time.Second)
		w.open(shopHTTP, "10.244.0.1:80", 0)
		w.sleep(2 * time.Second)
		for _, r := range w.takeReports() {
			if r.Drift > 0 {
				w.Errorf("drift %d: %v", r.Drift, done(r))
			}
		}
		w.is()
	})
}

// A connection limit stays while its virtual server lingers. If the annotation is removed, the agent also removes the
// limit, even after a restart.
func TestLimitsOfLingeringServers(t *testing.T) {
	limited := func() *model.Service {
		svc := shop("10.244.0.1")
		svc.Balancing.MaxConnections = 5
		return svc
	}
	calmBubble(t, func(w *world) {
		w.put(limited())
		w.start()
		w.open(shopHTTP, "10.244.0.1:80", 1)
		w.put(together(limited()))
		w.stop()
		w.open(shopHTTP, "10.244.0.1:80", 0)
		w.services[shop().ID] = shop("10.244.0.1")
		w.start()
		w.audit()
		w.is()
	})
}

// A port moves from a Service with source ranges to an unrestricted Service with one affinity for all ports. The
// source ranges apply until the first Service's virtual server is deleted.
func TestAllPortsTakeOverAGuardedPort(t *testing.T) {
	calmBubble(t, func(w *world) {
		few := shop("10.244.0.5")
		few.ID.Name, few.ClusterIPs = "few", []netip.Addr{netip.MustParseAddr("10.96.0.2")}
		few.Ports = slices.DeleteFunc(few.Ports, func(p model.ServicePort) bool { return p.Port != 53 })
		few = ranges(balanced(few, "203.0.113.1"), "198.51.100.0/24")
		all := balanced(together(shop("10.244.0.1")), "203.0.113.1")
		all.Ports = append(all.Ports, model.ServicePort{Name: "sip", Protocol: inet.UDP, Port: 5060})
		all.Slices[0].Ports = append(all.Slices[0].Ports, model.EndpointPort{Name: "sip", Protocol: inet.UDP, Port: 5060})
		w.put(few, all)
		w.start()
		var order []string
		w.fake.OnOp(func(op kernel.Op, err error) {
			if text := op.String(); strings.Contains(text, "203.0.113.1,udp:53") || strings.Contains(text, "-D -u 203.0.113.1:53") {
				order = append(order, text)
			}
			w.checkStep(op, err)
		})
		w.remove("few")
		gone := slices.IndexFunc(order, func(s string) bool { return strings.Contains(s, "-D -u") })
		open := slices.IndexFunc(order, func(s string) bool { return strings.Contains(s, "del KIPVS-4-FIREWALLED") })
		if gone < 0 || open < gone {
			w.Errorf("order: %v", order)
		}
		w.is()
	})
}

func TestViewOfAllPorts(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(together(shop("10.244.0.1", "10.244.0.2")))
		w.start()
		w.open(shopTCP, "10.244.0.2:0", 1)
		w.put(together(shop("10.244.0.1")))
		seen := map[string]string{}
		for _, f := range w.view(everything).Services[0].Frontends {
			if !f.AllPorts || f.State != view.Served || f.Server[:2] != "-"+f.Protocol[:1] {
				w.Errorf("frontend %+v", f)
			}
			text := ""
			for _, e := range f.Endpoints {
				text += fmt.Sprint(e.Address, " ", e.State, " ")
			}
			for _, e := range f.SetEntries {
				text += e.Entry + " "
			}
			seen[f.Address.String()+"/"+f.Protocol] = text
		}
		if d := cmp.Diff(map[string]string{
			"10.96.0.1:53/udp":  "10.244.0.1:53 Ready 10.96.0.1 10.96.0.1,udp:53 10.96.0.1 10.244.0.1,udp:53,10.244.0.1 10.96.0.1 ",
			"10.96.0.1:80/tcp":  "10.244.0.1:80 Ready 10.244.0.2:80 Draining 10.96.0.1 10.96.0.1,tcp:80 10.96.0.1 10.244.0.1,tcp:80,10.244.0.1 10.96.0.1 ",
			"10.96.0.1:443/tcp": "10.244.0.1:443 Ready 10.244.0.2:443 Draining 10.96.0.1 10.96.0.1,tcp:443 10.96.0.1 10.244.0.1,tcp:443,10.244.0.1 10.96.0.1 ",
		}, seen); d != "" {
			w.Errorf("frontends (-want +have):\n%s", d)
		}
		w.open(shopTCP, "10.244.0.1:0", 1)
		w.put(shop("10.244.0.1"))
		for _, f := range w.view(everything).Services[0].Frontends {
			if lingers := strings.Contains(f.Reason, "continue at 10.96.0.1:0"); lingers != (f.Protocol == "tcp") || f.AllPorts {
				w.Errorf("frontend %+v", f)
			}
		}
	})
}

func TestFlowsEndWithAllPorts(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(together(shop("10.244.0.1")))
		w.start()
		w.settle()
		w.flows(flow(shopDNS, "10.244.0.1:53"))
		w.remove("shop")
		w.settle()
		w.flowsAre()
	})
}

func TestFlowsOfClosedPortsEnd(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(together(shop("10.244.0.1")))
		w.start()
		more := together(shop("10.244.0.1"))
		more.Ports = append(more.Ports, model.ServicePort{Name: "sip", Protocol: inet.UDP, Port: 5060})
		more.Slices[0].Ports = append(more.Slices[0].Ports, model.EndpointPort{Name: "sip", Protocol: inet.UDP, Port: 5060})
		w.put(more)
		sip := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:5060"), Protocol: inet.UDP}
		stays, other := flow(shopDNS, "10.244.0.1:53"), flow(shopDNS, "10.244.0.9:53")
		w.settle()
		w.flows(stays, other, flow(sip, "10.244.0.1:5060"))
		w.put(together(shop("10.244.0.1")))
		w.settle()
		w.flowsAre(stays, other)
		w.put(together(shop("10.244.0.1", "10.244.0.2")))
		w.put(together(shop("10.244.0.1")))
		w.settle()
		w.flowsAre(stays)
	})
}
