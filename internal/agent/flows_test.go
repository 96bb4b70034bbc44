package agent_test

import (
	"context"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var (
	dnsKey  = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: inet.UDP}
	sctpKey = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.11:80"), Protocol: inet.SCTP}
)

func flow(key kernel.ServerKey, endpoint string) kernel.Flow {
	return kernel.Flow{Key: key, Client: netip.MustParseAddrPort("10.244.0.50:4711"), Endpoint: netip.MustParseAddrPort(endpoint)}
}

func unserved(key kernel.ServerKey) kernel.Flow { return flow(key, key.Addr.String()) }

func (w *world) flows(list ...kernel.Flow) {
	w.Helper()
	for _, f := range list {
		if err := w.fake.AddFlow(f); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) flowsAre(list ...kernel.Flow) {
	w.Helper()
	if have := w.fake.Flows(); !slices.Equal(have, list) {
		w.Errorf("got flows %v, want %v", have, list)
	}
}

func dns(endpoints ...string) *model.Service {
	return proto(compiletest.Service("dns", "10.96.0.10", endpoints...), inet.UDP)
}

func sip(endpoints ...string) *model.Service {
	return proto(compiletest.Service("sip", "10.96.0.11", endpoints...), inet.SCTP)
}

func (w *world) settle() { w.sleep(2 * time.Second) }

// A client that keeps sending would stay on the removed endpoint, because its packets match the old tracked
// connection. Answered TCP connections stay (I13).
func TestUDPFlowsLeaveRemovedEndpoints(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(web("10.244.0.1", "10.244.0.2"), dns("10.244.0.1", "10.244.0.2"), sip("10.244.0.1", "10.244.0.2"))
		w.start()
		w.converged()
		tcpGone, tcpStays := flow(webKey, "10.244.0.1:8080"), flow(webKey, "10.244.0.2:8080")
		dnsStays, sipStays := flow(dnsKey, "10.244.0.2:8080"), flow(sctpKey, "10.244.0.2:8080")
		w.flows(tcpGone, tcpStays, flow(dnsKey, "10.244.0.1:8080"), dnsStays, flow(sctpKey, "10.244.0.1:8080"), sipStays)
		w.takeReports()
		w.put(web("10.244.0.2"), dns("10.244.0.2"), sip("10.244.0.2"))
		w.flowsAre(tcpGone, tcpStays, dnsStays, sipStays)
		if r := w.lastReport(); r.EndedFlows != 2 {
			w.Errorf("the report counts %d ended flows", r.EndedFlows)
		}
		w.settle()
		w.put(dns(), sip())
		w.flowsAre(tcpGone, tcpStays)
	})
}

func TestFlowsFollowServices(t *testing.T) {
	calmBubble(t, func(w *world) {
		other := flow(kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.99:80"), Protocol: inet.UDP}, "10.96.0.99:80")
		w.flows(unserved(dnsKey), other)
		w.start()
		w.settle()
		w.flowsAre(unserved(dnsKey), other)
		w.put(dns("10.244.0.1"))
		w.flowsAre(other)

		served := flow(dnsKey, "10.244.0.1:8080")
		w.flows(served)
		w.settle()
		w.fake.TakeCounts()
		w.put(dns("10.244.0.1", "10.244.0.2"))
		w.put(sticky(dns("10.244.0.1", "10.244.0.2")))
		w.flowsAre(other, served)
		if c := w.fake.TakeCounts(); c.FlowWalks > 0 {
			w.Errorf("walked the connections %d times although no endpoint was deleted", c.FlowWalks)
		}
		external := kernel.ServerKey{Addr: netip.MustParseAddrPort("203.0.113.1:80"), Protocol: inet.UDP}
		w.flows(unserved(external))
		svc := dns("10.244.0.1")
		svc.ExternalIPs = []netip.Addr{external.Addr.Addr()}
		w.put(svc)
		w.flowsAre(other, served)

		w.settle()
		w.remove("dns")
		w.flowsAre(other)
	})
}

func TestFlowsAfterRestart(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web(), dns("10.244.0.1"))
		w.start()
		w.settle()
		w.stop()
		gone, stays, tcp := flow(dnsKey, "10.244.0.9:8080"), flow(dnsKey, "10.244.0.1:8080"), flow(webKey, "10.244.0.9:8080")
		w.flows(gone, stays, tcp)
		w.fake.TakeCounts()
		w.start()
		w.flowsAre(stays, tcp)
		w.flows(gone)
		w.sleep(5 * auditInterval)
		if c := w.fake.TakeCounts(); c.FlowWalks != 2 {
			w.Errorf("walked the connections %d times, want 2", c.FlowWalks)
		}
		w.flowsAre(stays, tcp, gone)
	})
}

func TestFlowsOfForeignServersStay(t *testing.T) {
	bubble(t, func(w *world) {
		theirs := flow(dnsKey, "192.168.1.2:9") // an earlier endpoint of the foreign virtual server
		w.damage(foreign(dnsKey))
		w.flows(theirs)
		w.put(dns("10.244.0.1"))
		w.start()
		w.converged(foreign(dnsKey))
		w.put(dns("10.244.0.2"))
		w.settle()
		w.remove("dns")
		w.settle()
		w.restart()
		w.settle()
		w.flowsAre(theirs)
	})
}

func TestFlowsOfAnIntruderStay(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		w.settle()
		w.mayUnclaim = true
		theirs := flow(dnsKey, "192.168.1.2:9") // an earlier endpoint of the foreign virtual server
		w.fake.OnOp(func(op kernel.Op, _ error) {
			if m, ok := op.Object.(kernel.Member); ok && m == entry(dnsKey) && op.Verb == kernel.Create {
				w.fake.OnOp(nil)
				if err := foreign(dnsKey)(w.fake); err != nil {
					w.Error(err)
				}
				w.flows(theirs)
			}
		})
		w.put(dns("10.244.0.1"))
		w.sleep(5 * auditInterval)
		w.flowsAre(theirs)
	})
}

// If flows cannot be ended, the agent retries every second, and no sync fails. If the failure persists, the agent
// reports a Problem of the node.
func TestEndFlowsFails(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(dns("10.244.0.1", "10.244.0.2"))
		w.start()
		w.settle()
		w.takeReports()
		for range 10 {
			w.fake.FailNextEndFlows(syscall.EPERM)
		}
		w.flows(flow(dnsKey, "10.244.0.1:8080"))
		w.fake.TakeCounts()
		problems := func(r agent.Report) int {
			return len(slices.DeleteFunc(r.NodeProblems, func(p model.Problem) bool { return p.Field != "connection tracking" }))
		}
		w.put(dns("10.244.0.2"))
		if r := w.lastReport(); problems(r) > 0 {
			w.Errorf("reported a Problem after one failure: %v", r.NodeProblems)
		}
		w.sleep(500 * time.Millisecond)
		w.put(web())
		if !w.has("10.96.0.1/32") {
			w.Error("a change to another Service waits")
		}
		w.sleep(7 * time.Second)
		if c := w.fake.TakeCounts(); c.FlowWalks != 8 || c.Reads > 0 {
			w.Errorf("counts %+v", c)
		}
		if r := w.lastReport(); problems(r) != 1 {
			w.Errorf("got Problems %v after eight failures", r.NodeProblems)
		}
		w.sleep(4 * time.Second)
		w.flowsAre()
		w.fake.TakeCounts()
		w.sleep(10 * time.Second)
		if c := w.fake.TakeCounts(); c.FlowWalks > 0 || c.Reads > 0 {
			w.Errorf("the agent still retries: %+v", c)
		}
		reports := w.takeReports()
		if r := reports[len(reports)-1]; problems(r) > 0 {
			w.Errorf("Problems remain at the end: %v", r.NodeProblems)
		}
		for _, r := range reports {
			if r.Err != nil {
				w.Errorf("a sync failed: %v", r.Err)
			}
		}
	})
}

// Each check reads all tracked connections.
func TestFlowsAreCheckedOncePerSecond(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(dns("10.244.0.1"))
		w.start()
		w.fake.TakeCounts()
		for i := range 50 {
			w.put(dns([]string{"10.244.0.1", "10.244.0.2"}[i%2]))
			w.sleep(100 * time.Millisecond)
		}
		w.settle()
		if c := w.fake.TakeCounts(); c.FlowWalks < 4 || c.FlowWalks > 6 {
			w.Errorf("walked the connections %d times in 5 s", c.FlowWalks)
		}
	})
}

// If the kernel's reply to a removal is lost, the endpoint's flows end after the next read of the kernel.
func TestFlowsAfterALostReply(t *testing.T) {
	for kind, change := range map[kernel.Kind]func(*world){
		kernel.KindDestination: func(w *world) { w.put(dns("10.244.0.2")) },
		kernel.KindServer:      func(w *world) { w.remove("dns") },
	} {
		calmBubble(t, func(w *world) {
			w.put(dns("10.244.0.1", "10.244.0.2"))
			w.start()
			w.settle()
			w.flows(flow(dnsKey, "10.244.0.1:8080"))
			w.fake.LoseNext(kind, syscall.ETIMEDOUT)
			change(w)
			w.settle()
			w.flowsAre()
			w.is()
		})
	}
}

// unanswered returns a TCP connection whose first packet is still unanswered.
func unanswered(f kernel.Flow) kernel.Flow {
	f.Unanswered = true
	return f
}

// A TCP client that connects before the Service exists retransmits its first packet, and the kernel sends each copy
// along the same path.
func TestUnansweredConnectionsFollowServices(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.settle()
		answered, elsewhere := unserved(webKey), unanswered(unserved(tcp("10.96.0.99:80")))
		w.flows(unanswered(unserved(webKey)), answered, elsewhere)
		w.put(web("10.244.0.1"))
		w.converged()
		w.flowsAre(answered, elsewhere)
		// While the device is missing, packets to its addresses leave the node.
		begun := unanswered(flow(webKey, "10.244.0.1:8080"))
		w.flows(begun)
		w.damage((*kerneltest.Fake).DelDevice)
		w.flows(unanswered(unserved(webKey)))
		w.converged()
		w.flowsAre(answered, elsewhere, begun)
	})
}

// While another program has removed what masquerades packets, new flows stay without it. After the repair, the agent ends those whose replies bypass
// the node, even if the same sync does other work.
func TestUnmasqueradedFlowsEndAfterRepairs(t *testing.T) {
	external := kernel.ServerKey{Addr: netip.MustParseAddrPort("203.0.113.1:80"), Protocol: inet.UDP}
	for name, damage := range map[string]func(*kerneltest.Fake) error{
		"set": func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-MASQUERADED") }, "rules": drifts["chain flushed"],
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				svc := dns("10.244.0.1")
				svc.ExternalIPs = []netip.Addr{external.Addr.Addr()}
				w.put(svc)
				w.start()
				w.converged()
				w.settle()
				bypassing, answered, masqueraded := flow(external, "10.244.0.1:8080"), flow(external, "10.244.0.1:8080"), flow(external, "10.244.0.1:8080")
				bypassing.OneWay, masqueraded.OneWay, masqueraded.Masqueraded = true, true, true
				answered.Client, masqueraded.Client = netip.MustParseAddrPort("192.0.2.2:1"), netip.MustParseAddrPort("192.0.2.3:1")
				w.flows(bypassing, answered, masqueraded)
				w.put(web("10.244.0.7"))
				w.settle()
				w.flowsAre(bypassing, answered, masqueraded)
				w.damage(damage)
				w.put(web("10.244.0.8"))
				w.converged()
				w.settle()
				w.flowsAre(answered, masqueraded)
			})
		})
	}
}

type slowKernel struct {
	agent.Kernel
	walking, release chan struct{}
}

func (k slowKernel) EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error) {
	k.walking <- struct{}{}
	select {
	case <-k.release:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return k.Kernel.EndFlows(ctx, protocols, stale)
}

func TestServicesDoNotWaitForAWalk(t *testing.T) {
	calmBubble(t, func(w *world) {
		slow := slowKernel{w.fake, make(chan struct{}, 10), make(chan struct{})}
		w.kernel = slow
		w.start()
		before := unanswered(unserved(webKey))
		w.flows(before)
		for range 10 {
			w.put(web("10.244.0.1"))
			w.sleep(time.Second)
			w.put(web("10.244.0.2"))
			w.sleep(time.Second)
		}
		w.is()
		if n := len(slow.walking); n != 1 {
			w.Errorf("%d walks began, want 1", n)
		}
		w.flowsAre(before)
		close(slow.release)
		w.sleep(201 * time.Second)
		w.flowsAre()
		if n := len(slow.walking); n != 2 {
			w.Errorf("%d walks began, want 2", n)
		}
	})
}
