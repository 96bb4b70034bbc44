package agent_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	manyServices  = 10_000
	manyEndpoints = 10
)

func TestCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		w.fake.OnOp(nil)
		w.unwatched = true
		w.services = compiletest.Many(manyServices, manyEndpoints)

		w.start()
		c := w.fake.TakeCounts()
		t.Logf("cold start: %d operations in %d batches, %d reads, %d lookups", c.Writes(), c.Batches, c.Reads, c.Lookups)
		if c.Batches > 12+c.Writes()/agent.MaxPart || c.Reads != 1 || c.Lookups > 0 || c.Ops[kernel.KindServer] != manyServices {
			t.Errorf("cold start: %+v", c)
		}
		w.takeReports()

		oneEndpoint(w)
		twoPorts(w)
		everywhere(w)
		neighbors(w)
		rivals(w)
		w.sleep(2 * drainInterval)
		w.restart()
		if c := w.fake.TakeCounts(); c.Reads != 1 || c.Writes() > 0 || c.Lookups > 0 || c.Batches > 0 {
			t.Errorf("a restart without changes must only read the kernel once, got %+v", c)
		}
		w.takeReports()
		running := heap()
		w.stop()
		w.source = nil
		t.Logf("the agent uses %.1f MiB without the Services and the kernel", float64(running-heap())/(1<<20))
		runtime.KeepAlive(w)
	})
}

func oneEndpoint(w *world) {
	const times = 200
	svc := w.services[model.ServiceID{Namespace: "default", Name: "svc-05000"}]
	var mallocs, bytes uint64
	var took time.Duration
	for i := range times {
		svc = compiletest.WithEndpoint(svc, compiletest.Ready(compiletest.Pod(1<<20+i)))
		// The Service does not grow: it always has 10 old endpoints and one new endpoint.
		slice := *svc.Slices[0]
		slice.Endpoints = append(slice.Endpoints[:manyEndpoints:manyEndpoints], slice.Endpoints[len(slice.Endpoints)-1])
		next := *svc
		next.Slices = []*model.EndpointSlice{&slice}
		mallocs0, bytes0, cpu0 := usage()
		w.put(&next)
		mallocs1, bytes1, cpu1 := usage()
		mallocs, bytes, took = mallocs+mallocs1-mallocs0, bytes+bytes1-bytes0, took+cpu1-cpu0

		r, c := w.lastReport(), w.fake.TakeCounts()
		if len(r.Compiled) != 1 || r.Full {
			w.Fatalf("a full sync, or more than one Service compiled: %v", r.Compiled)
		}
		if want := min(i+1, 2); c.Ops[kernel.KindDestination] != want || c.Writes() != want || c.Reads+c.Lookups > 0 {
			w.Fatalf("replacing an endpoint cost %+v", c)
		}
		if i == 0 && c.Writes() != 1 {
			w.Fatalf("adding an endpoint cost %+v, want one write", c)
		}
	}
	w.Logf("one endpoint: %v, %d allocations, %d KiB", took/times, mallocs/times, bytes/times>>10)
	if mallocs/times > 500 {
		w.Errorf("replacing an endpoint takes %d allocations, want at most 500", mallocs/times)
	}
}

func twoPorts(w *world) {
	svc := compiletest.Service("two-ports", "10.200.0.1", "10.244.0.1")
	svc.Ports = append(svc.Ports, model.ServicePort{Name: "https", Protocol: inet.TCP, Port: 443})
	svc.Slices[0].Ports = append(svc.Slices[0].Ports, model.EndpointPort{Name: "https", Protocol: inet.TCP, Port: 8443})
	w.put(svc)
	w.fake.TakeCounts()
	w.put(compiletest.WithEndpoint(svc, compiletest.Ready(netip.MustParseAddr("10.244.7.7"))))
	if c := w.fake.TakeCounts(); c.Ops[kernel.KindDestination] != 2 || c.Writes() != 2 || c.Reads+c.Lookups > 0 {
		w.Errorf("adding an endpoint to two ports cost %+v, want two writes", c)
	}
}

func everywhere(w *world) {
	svc := ranges(balanced(onNodes(compiletest.Service("everywhere", "10.200.0.2", "10.244.0.1"), 30080), "203.0.113.1"), "198.51.100.0/24")
	w.put(svc)
	w.fake.TakeCounts()
	w.put(compiletest.WithEndpoint(svc, compiletest.Ready(netip.MustParseAddr("10.244.7.7"))))
	if c := w.fake.TakeCounts(); c.Ops[kernel.KindDestination] != 3 || c.Writes() != 3 || c.Reads+c.Lookups+c.NodeReads > 0 {
		w.Errorf("adding an endpoint to three addresses cost %+v, want three writes", c)
	}
}

func neighbors(w *world) {
	for addr, concerned := range map[string]int{"192.0.2.77": 0, "203.0.113.1": 1} {
		w.takeReports()
		w.fake.TakeCounts()
		w.source.putNodes(map[string]*model.Node{"node-x": {Name: "node-x", Addresses: []netip.Addr{netip.MustParseAddr(addr)}}})
		w.sleep(0)
		r, c := w.lastReport(), w.fake.TakeCounts()
		if len(r.Compiled) != concerned || c.Reads+c.NodeReads+c.Writes() > 0 {
			w.Errorf("adding a node at %s compiled %v and cost %+v", addr, r.Compiled, c)
		}
		w.source.putNodes(map[string]*model.Node{"node-x": nil})
		w.sleep(0)
	}
}

func rivals(w *world) {
	large := compiletest.Large("large", 1, 1000)
	w.put(large)
	for i := range 20 {
		svc := compiletest.Service(fmt.Sprint("rival-", i), fmt.Sprint("10.201.0.", 1+i), "10.244.0.1")
		svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.2"), large.ClusterIPs[0]}
		svc.Ports[0].Port = large.Ports[0].Port
		w.put(svc)
	}
	for name, writes := range map[string]int{"rival-0": 2, "rival-1": 1} { // rival-0 is served at the contested address and its ClusterIP
		w.fake.TakeCounts()
		w.put(compiletest.WithEndpoint(w.services[model.ServiceID{Namespace: "default", Name: name}], compiletest.Ready(netip.MustParseAddr("10.244.7.7"))))
		if r, c := w.lastReport(), w.fake.TakeCounts(); len(r.Compiled) != 1 || c.Writes() != writes || c.Reads+c.Lookups > 0 {
			w.Errorf("adding an endpoint to %s compiled %v and cost %+v", name, r.Compiled, c)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// usage returns the CPU time and memory that this process has used. It measures CPU time, because time.Now does not
// advance in a bubble.
func usage() (mallocs, bytes uint64, cpu time.Duration) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs, m.TotalAlloc, cpuTime()
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(fmt.Sprint("getrusage: ", err))
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
