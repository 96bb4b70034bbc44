package flows

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	dns   = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.10:53"), Protocol: inet.UDP}
	pod   = netip.MustParseAddrPort("10.244.0.1:53")
	gone  = netip.MustParseAddrPort("10.244.0.2:53")
)

func with(key kernel.ServerKey, destination netip.AddrPort) *kernel.State {
	server := kernel.ObservedServer{Server: kernel.Server{Key: key}, Destinations: []kernel.ObservedDestination{
		{Destination: kernel.Destination{Addr: destination, Weight: 1}},
	}}
	return &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{key: server}}
}

func around(have *kernel.State, ours bool) Surroundings {
	return Surroundings{
		Have: have, Ours: func(kernel.ServerKey) bool { return ours }, Ports: func(kernel.ServerKey) []uint16 { return nil },
		Masquerades: func(kernel.ServerKey) bool { return false },
	}
}

func deleted(key kernel.ServerKey) kernel.Op {
	return kernel.Op{Verb: kernel.Delete, Object: kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: gone}}}
}

func created(key kernel.ServerKey) kernel.Op {
	return kernel.Op{Verb: kernel.Create, Object: kernel.Server{Key: key}}
}

func bound(addr netip.Addr) kernel.Op {
	return kernel.Op{Verb: kernel.Create, Object: kernel.BoundAddress{Addr: addr}}
}

func quiet() *Flows {
	f := New(false)
	f.succeed(f.Begin(around(&kernel.State{}, true)))
	f.next = time.Time{}
	return f
}

func (f *Flows) succeed(c *Check) { f.Finished(c, start, 0, nil) }

func TestAllFlowsAreCheckedAfterStart(t *testing.T) {
	f := New(false)
	if !f.Due(start) {
		t.Fatal("nothing to check")
	}
	check := f.Begin(around(with(dns, pod), true))
	if !check.Stale(kernel.Flow{Key: dns, Endpoint: gone}) || check.Stale(kernel.Flow{Key: dns, Endpoint: pod}) {
		t.Error("all flows must be checked, because changes before the start are unknown")
	}
	if diff := cmp.Diff([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}, check.Protocols()); diff != "" {
		t.Error(diff)
	}
	check = quiet().Begin(around(with(dns, pod), true))
	if f := quiet(); f.Due(start) || !f.Next().IsZero() || check.Stale(kernel.Flow{Key: dns, Endpoint: gone}) || len(check.Protocols()) > 0 {
		t.Error("flows are still checked after the first check")
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
			if got := f.Begin(c.around).Stale(kernel.Flow{Key: dns, Endpoint: c.endpoint}); got != c.want {
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
	s.Ports = func(kernel.ServerKey) []uint16 { return []uint16{53} }
	check := f.Begin(s)
	if check.Stale(kernel.Flow{Key: dns, Endpoint: pod}) {
		t.Error("the flow is stale although the endpoint still serves the port")
	}
	if !check.Stale(kernel.Flow{Key: dns, Endpoint: netip.AddrPortFrom(pod.Addr(), 5353)}) {
		t.Error("the flow is not stale, although an all-ports server does not map ports")
	}
}

func TestPortBesideAnAllPortsServer(t *testing.T) {
	have := with(dns.AllPorts(), netip.AddrPortFrom(pod.Addr(), 0))
	have.Servers[dns] = with(dns, gone).Servers[dns]
	for _, noted := range []kernel.ServerKey{dns, dns.AllPorts()} {
		f := quiet()
		f.Note(kernel.Op{Verb: kernel.Create, Object: kernel.Server{Key: noted}}, nil, have)
		check := f.Begin(around(have, true))
		if check.Stale(kernel.Flow{Key: dns, Endpoint: gone}) {
			t.Errorf("%s changed: the flow is stale although the port's own virtual server leads to its endpoint", noted)
		}
		if check.Stale(kernel.Flow{Key: dns, Endpoint: pod}) != (noted == dns) {
			t.Errorf("%s changed: wrong result for a flow to an endpoint of the all-ports server", noted)
		}
	}
}

func TestFailedOperationIsCheckedAfterAFullRead(t *testing.T) {
	f := quiet()
	f.Note(deleted(dns), errors.New("no memory"), with(dns, pod))
	if f.Due(start) {
		t.Error("the flow is checked before it is known whether the operation took effect")
	}
	if f.Verified(); !f.Due(start) {
		t.Error("the flow is not checked after a full read")
	}
}

// Answered TCP connections are never ended (I13). An unanswered connection is ended if it began before its virtual
// server existed. IPVS itself ends connections to a deleted destination.
func TestOnlyUnansweredTCPConnections(t *testing.T) {
	web := kernel.ServerKey{Addr: dns.Addr, Protocol: inet.TCP}
	have := with(web, pod)
	for name, c := range map[string]struct {
		op   kernel.Op
		flow kernel.Flow
		want bool
	}{
		"answered":                          {created(web), kernel.Flow{Key: web, Endpoint: gone}, false},
		"unanswered":                        {created(web), kernel.Flow{Key: web, Endpoint: web.Addr, Unanswered: true}, true},
		"unanswered, at a current endpoint": {created(web), kernel.Flow{Key: web, Endpoint: pod, Unanswered: true}, false},
		"a destination is gone":             {deleted(web), kernel.Flow{Key: web, Endpoint: gone, Unanswered: true}, false},
		"the address was unbound":           {bound(web.Addr.Addr()), kernel.Flow{Key: web, Endpoint: web.Addr, Unanswered: true}, true},
		"another address was unbound":       {bound(pod.Addr()), kernel.Flow{Key: web, Endpoint: web.Addr, Unanswered: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := quiet()
			f.Note(c.op, nil, have)
			if got := f.Begin(around(have, true)).Stale(c.flow); got != c.want {
				t.Errorf("stale: %t", got)
			}
		})
	}
}

// TestFlowsWithoutMasquerading: while another program has removed what masquerades packets, the kernel decides for each new flow that it is not
// masqueraded, and keeps to that. After the repair, flows whose replies bypass this node are ended.
func TestFlowsWithoutMasquerading(t *testing.T) {
	web := kernel.ServerKey{Addr: dns.Addr, Protocol: inet.TCP}
	outside, self, node := netip.MustParseAddrPort("192.0.2.1:4000"), netip.AddrPortFrom(pod.Addr(), 4000), netip.AddrPortFrom(dns.Addr.Addr(), 4000)
	for name, c := range map[string]struct {
		flow    kernel.Flow
		all     bool // the endpoint sees the node's address for every client
		foreign bool
		stale   bool
	}{
		"TCP":                   {flow: kernel.Flow{Key: web, Client: outside, Unanswered: true, OneWay: true}, all: true, stale: true},
		"datagrams":             {flow: kernel.Flow{Key: dns, Client: outside, OneWay: true}, all: true, stale: true},
		"a pod to itself":       {flow: kernel.Flow{Key: dns, Client: self, OneWay: true}, stale: true},
		"the node":              {flow: kernel.Flow{Key: dns, Client: node, OneWay: true}, stale: true},
		"answered TCP":          {flow: kernel.Flow{Key: web, Client: outside}, all: true},
		"answered datagrams":    {flow: kernel.Flow{Key: dns, Client: outside}, all: true}, // the endpoint is on this node
		"TCP, state unknown":    {flow: kernel.Flow{Key: web, Client: outside, OneWay: true}, all: true},
		"masqueraded":           {flow: kernel.Flow{Key: web, Client: outside, Unanswered: true, OneWay: true, Masqueraded: true}, all: true},
		"masqueraded datagrams": {flow: kernel.Flow{Key: dns, Client: self, OneWay: true, Masqueraded: true}, all: true},
		"keeps its address":     {flow: kernel.Flow{Key: dns, Client: outside, OneWay: true}},
		"another program's":     {flow: kernel.Flow{Key: dns, Client: outside, OneWay: true}, all: true, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			c.flow.Endpoint = pod
			s := around(with(c.flow.Key, pod), !c.foreign)
			s.Masquerades = func(kernel.ServerKey) bool { return c.all }
			f := quiet()
			if f.Begin(s).Stale(c.flow) {
				t.Error("stale although nothing was missing")
			}
			f = quiet()
			f.Unmasqueraded()
			if got := f.Begin(s).Stale(c.flow); got != c.stale {
				t.Errorf("stale: %t", got)
			}
			if got := New(false).Begin(s).Stale(c.flow); got != c.stale {
				t.Errorf("stale in the first check: %t", got)
			}
		})
	}
}

// Without IPVS, nothing else ends connections to a deleted destination.
func TestUnansweredTCPConnectionsWithoutIPVS(t *testing.T) {
	web := kernel.ServerKey{Addr: dns.Addr, Protocol: inet.TCP}
	have := with(web, pod)
	f := New(true)
	f.succeed(f.Begin(around(&kernel.State{}, true)))
	f.Note(deleted(web), nil, have)
	check := f.Begin(around(have, true))
	if !check.Stale(kernel.Flow{Key: web, Endpoint: gone, Unanswered: true}) {
		t.Error("the flow is not stale although its endpoint no longer exists")
	}
	if check.Stale(kernel.Flow{Key: web, Endpoint: gone}) || check.Stale(kernel.Flow{Key: web, Endpoint: pod, Unanswered: true}) {
		t.Error("a flow that must continue is stale")
	}
	if diff := cmp.Diff([]inet.Protocol{inet.TCP}, check.Protocols()); diff != "" {
		t.Error(diff)
	}
}

// Each protocol requires its own walk through the connection tracking table.
func TestProtocols(t *testing.T) {
	web := kernel.ServerKey{Addr: dns.Addr, Protocol: inet.TCP}
	have := with(web, pod)
	have.Servers[dns] = with(dns, pod).Servers[dns]
	for name, c := range map[string]struct {
		op   kernel.Op
		want []inet.Protocol
	}{
		"a TCP server":            {created(web), []inet.Protocol{inet.TCP}},
		"a destination of UDP":    {deleted(dns), []inet.Protocol{inet.UDP}},
		"an address of both":      {bound(dns.Addr.Addr()), []inet.Protocol{inet.TCP, inet.UDP}},
		"an address of no server": {bound(pod.Addr()), nil},
	} {
		f := quiet()
		f.Note(c.op, nil, have)
		if diff := cmp.Diff(c.want, f.Begin(around(have, true)).Protocols(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestChangesDuringACheck(t *testing.T) {
	have := with(dns, pod)
	f := quiet()
	f.Note(deleted(dns), nil, have)
	check := f.Begin(around(have, true))
	if f.Due(start) || !f.Next().IsZero() {
		t.Error("a second check is due while one runs")
	}
	have.Advance(kernel.Op{Verb: kernel.Delete, Object: kernel.Server{Key: dns}})
	f.Note(kernel.Op{Verb: kernel.Delete, Object: kernel.Server{Key: dns}}, nil, have)
	if check.Stale(kernel.Flow{Key: dns, Endpoint: pod}) {
		t.Error("a later change affects the running check")
	}
	f.succeed(check)
	if !f.Due(start.Add(Interval)) || !f.Begin(around(have, true)).Stale(kernel.Flow{Key: dns, Endpoint: pod}) {
		t.Error("the next check ignores the change")
	}
}

func TestFailedCheck(t *testing.T) {
	have := with(dns, pod)
	f := quiet()
	f.Note(deleted(dns), nil, have)
	f.Finished(f.Begin(around(have, true)), start, 0, errors.New("no memory"))
	if !f.Due(start.Add(Interval)) || !f.Begin(around(have, true)).Stale(kernel.Flow{Key: dns, Endpoint: gone}) {
		t.Error("the flow is not checked again after a failure")
	}
}

func TestChecksAreSpaced(t *testing.T) {
	f := New(false)
	f.Defer(start)
	if f.Due(start.Add(Interval-1)) || !f.Due(start.Add(Interval)) {
		t.Errorf("the next check is at %v", f.Next())
	}
	f.Finished(f.Begin(around(with(dns, pod), true)), start, time.Second, errors.New("no memory"))
	if f.Due(start.Add(9*time.Second)) || !f.Due(start.Add(10*time.Second)) {
		t.Errorf("after a check that took one second, the next is at %v", f.Next())
	}
}

// If an endpoint answers a flow that did not start through IPVS, the kernel tracks the answer as a separate flow, which blocks the client's
// next flow.
func TestAnswersToEndedFlows(t *testing.T) {
	sender := netip.MustParseAddrPort("10.244.1.9:4000")
	before := kernel.Flow{Key: dns, Client: sender, Endpoint: dns.Addr} // from before the Service existed
	answer := kernel.Flow{Key: kernel.ServerKey{Addr: sender, Protocol: inet.UDP}, Client: pod, Endpoint: sender}
	foreign := answer
	foreign.Client = gone // not an endpoint of the Service
	f := quiet()
	f.Note(created(dns), nil, with(dns, pod))

	first := f.Begin(around(with(dns, pod), true))
	if first.Stale(answer) {
		t.Error("an answer was ended although no flow to its endpoint was ended")
	}
	if !first.Stale(before) || !first.Stale(answer) || first.Stale(foreign) {
		t.Error("only the flow and its answer must end")
	}
	f.succeed(first)
	if !f.Due(start.Add(Interval)) {
		t.Error("no further check is due for answers that were in flight")
	}
	second := f.Begin(around(with(dns, pod), true))
	if !second.Stale(answer) || second.Stale(foreign) {
		t.Error("only the late answer must end")
	}
	if diff := cmp.Diff([]inet.Protocol{inet.UDP}, second.Protocols()); diff != "" {
		t.Error(diff)
	}
	f.succeed(second)
	if f.Due(start.Add(time.Hour)) || f.Begin(around(with(dns, pod), true)).Stale(answer) {
		t.Error("the check looked for answers to one client twice")
	}
}

// A check must not compare a flow with every endpoint of its virtual server. Otherwise a user with a large Service and
// many flows could delay the check of other Services' flows.
func TestEndpointsAreNotSearched(t *testing.T) {
	port := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: inet.UDP}
	server := kernel.ObservedServer{Server: kernel.Server{Key: port.AllPorts()}}
	for i := range 1000 {
		d := kernel.Destination{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 0)}
		server.Destinations = append(server.Destinations, kernel.ObservedDestination{Destination: d})
	}
	have := kernel.NewState()
	have.Servers[server.Key] = server
	s := around(have, true)
	s.Ports = func(kernel.ServerKey) []uint16 { return []uint16{53} }
	check := New(false).Begin(s)
	stays := kernel.Flow{Key: port, Client: netip.MustParseAddrPort("10.0.0.1:1"), Endpoint: netip.MustParseAddrPort("10.244.1.1:53")}
	if n := testing.AllocsPerRun(10, func() { check.Stale(stays) }); n > 0 || check.Stale(stays) {
		t.Errorf("a check of one flow took %v allocations; stale: %t", n, check.Stale(stays))
	}
	strayed := stays
	if strayed.Endpoint = netip.MustParseAddrPort("10.244.1.1:54"); !check.Stale(strayed) {
		t.Error("a flow to another port of the endpoint is not stale")
	}
}
