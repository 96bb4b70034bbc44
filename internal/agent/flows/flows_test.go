package flows

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	dns   = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.10:53"), Protocol: inet.UDP}
	pod   = netip.MustParseAddrPort("10.244.0.1:53")
	gone  = netip.MustParseAddrPort("10.244.0.2:53")
)

// with returns a kernel with one virtual server and one destination.
func with(key kernel.ServerKey, destination netip.AddrPort) *kernel.State {
	server := kernel.ObservedServer{Server: kernel.Server{Key: key}, Destinations: []kernel.ObservedDestination{
		{Destination: kernel.Destination{Addr: destination, Weight: 1}},
	}}
	return &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{key: server}}
}

func around(have *kernel.State, ours bool) Surroundings {
	return Surroundings{
		Have: have, Ours: func(kernel.ServerKey) bool { return ours }, Match: func(port kernel.ServerKey) kernel.ServerKey { return port },
	}
}

func deleted(key kernel.ServerKey) kernel.Op {
	return kernel.Op{Verb: kernel.Delete, Object: kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: gone}}}
}

// quiet returns Flows after the first check.
func quiet() *Flows {
	f := New()
	f.Checked(f.Check(Surroundings{}))
	return f
}

func TestEveryFlowIsCheckedOnceAfterAStart(t *testing.T) {
	f := New()
	if !f.Due(start) || !f.Check(around(with(dns, pod), true)).Stale(kernel.Flow{Key: dns, Endpoint: gone}) {
		t.Error("what happened before the start is not known, so all flows are checked")
	}
	f.Checked(f.Check(around(with(dns, pod), true)))
	if f.Due(start) || !f.Next().IsZero() || f.Check(around(with(dns, pod), true)).Stale(kernel.Flow{Key: dns, Endpoint: gone}) {
		t.Error("nothing is left to check")
	}
}

func TestStaleFlows(t *testing.T) {
	allPorts := dns.AllPorts()
	for name, c := range map[string]struct {
		noted    kernel.ServerKey
		around   Surroundings
		endpoint netip.AddrPort
		want     bool
	}{
		"the endpoint exists":                 {dns, around(with(dns, pod), true), pod, false},
		"the endpoint is gone":                {dns, around(with(dns, pod), true), gone, true},
		"of another program":                  {dns, around(with(dns, pod), false), gone, false},
		"the virtual server is gone":          {dns, around(&kernel.State{}, false), pod, true},
		"the all-ports server is gone":        {allPorts, around(&kernel.State{}, false), pod, true},
		"the all-ports server lacks the port": {allPorts, around(with(allPorts, netip.AddrPortFrom(pod.Addr(), 0)), true), pod, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := quiet()
			f.Note(deleted(c.noted), nil, c.around.Have)
			if got := f.Check(c.around).Stale(kernel.Flow{Key: dns, Endpoint: c.endpoint}); got != c.want {
				t.Errorf("stale: %t", got)
			}
		})
	}
}

func TestAllPortsServerMapsNoPorts(t *testing.T) {
	f := quiet()
	have := with(dns.AllPorts(), netip.AddrPortFrom(pod.Addr(), 0))
	f.Note(deleted(dns.AllPorts()), nil, have)
	s := around(have, true)
	s.Match = kernel.ServerKey.AllPorts
	if f.Check(s).Stale(kernel.Flow{Key: dns, Endpoint: pod}) {
		t.Error("the endpoint exists at the port")
	}
	if !f.Check(s).Stale(kernel.Flow{Key: dns, Endpoint: netip.AddrPortFrom(pod.Addr(), 5353)}) {
		t.Error("the virtual server does not lead to another port")
	}
}

func TestFailedOperationIsCheckedAfterAFullRead(t *testing.T) {
	f := quiet()
	f.Note(deleted(dns), errors.New("no memory"), with(dns, pod))
	if f.Due(start) {
		t.Error("whether the operation took effect is not known yet")
	}
	if f.Verified(); !f.Due(start) {
		t.Error("not checked after a full read")
	}
}

func TestOnlyProtocolsWithoutTeardown(t *testing.T) {
	f := quiet()
	web := kernel.ServerKey{Addr: dns.Addr, Protocol: inet.TCP}
	f.Note(deleted(web), nil, with(web, pod))
	if f.Due(start) {
		t.Error("TCP connections end by themselves")
	}
}

func TestChecksAreSpaced(t *testing.T) {
	f := New()
	f.Defer(start)
	if f.Due(start.Add(Interval-1)) || !f.Due(start.Add(Interval)) {
		t.Errorf("next check at %v", f.Next())
	}
}

// An endpoint that answers a flow which IPVS did not begin makes the kernel track the answer as a flow of its own, in the way of the
// client's next flow.
func TestAnswersToEndedFlows(t *testing.T) {
	sender := netip.MustParseAddrPort("10.244.1.9:4000")
	before := kernel.Flow{Key: dns, Client: sender, Endpoint: dns.Addr} // from before the Service existed
	answer := kernel.Flow{Key: kernel.ServerKey{Addr: sender, Protocol: inet.UDP}, Client: pod, Endpoint: sender}
	foreign := answer
	foreign.Client = gone // no endpoint of the Service
	f := quiet()
	f.Note(kernel.Op{Verb: kernel.Create, Object: kernel.Server{Key: dns}}, nil, with(dns, pod))

	first := f.Check(around(with(dns, pod), true))
	if first.Stale(answer) {
		t.Error("an answer was ended although no flow to its endpoint was")
	}
	if !first.Stale(before) || !first.Stale(answer) || first.Stale(foreign) {
		t.Error("want the flow and its answer to be ended, and nothing else")
	}
	f.Checked(first)
	if !f.Due(start) {
		t.Error("answers that were on their way are not looked for")
	}
	second := f.Check(around(with(dns, pod), true))
	if !second.Stale(answer) || second.Stale(foreign) {
		t.Error("want the late answer to be ended, and nothing else")
	}
	f.Checked(second)
	if f.Due(start) || f.Check(around(with(dns, pod), true)).Stale(answer) {
		t.Error("the answers of a client were looked for twice")
	}
}
