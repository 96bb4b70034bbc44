package machine

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestTallyOfALargeService: the counts of all endpoints are stored in one pass.
func TestTallyOfALargeService(t *testing.T) {
	key, counts := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}, tally{}
	server := kernel.ObservedServer{Server: kernel.Server{Key: key}}
	for i := range 1000 {
		endpoint := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
		server.Destinations = append(server.Destinations, kernel.ObservedDestination{Destination: kernel.Destination{Addr: endpoint}})
		counts.add(tracked{kernel.Connection{Destination: endpoint, State: "ESTABLISHED"}, key})
	}
	servers := map[kernel.ServerKey]kernel.ObservedServer{key: server}
	if n := testing.AllocsPerRun(1, func() { counts.store(servers) }); n > 10 {
		t.Errorf("%v allocations for 1,000 endpoints", n)
	}
}

func TestTally(t *testing.T) {
	at := netip.MustParseAddrPort
	server := func(addr string, endpoints ...string) (s kernel.ObservedServer) {
		s.Key = kernel.ServerKey{Addr: at(addr), Protocol: inet.TCP}
		for _, e := range endpoints {
			s.Destinations = append(s.Destinations, kernel.ObservedDestination{Destination: kernel.Destination{Addr: at(e)}})
		}
		return s
	}
	servers := map[kernel.ServerKey]kernel.ObservedServer{}
	for _, s := range []kernel.ObservedServer{
		server("10.96.0.1:80", "10.244.0.1:8080", "10.244.0.2:8080"), server("10.96.0.2:0", "10.244.0.3:0"), server("192.0.2.1:30080", "192.0.2.1:30080"),
	} {
		servers[s.Key] = s
	}
	counts, passed := tally{}, 0
	visit := ofServers(servers, func(c tracked) { passed++; counts.add(c) })
	for _, c := range []struct{ protocol, virtual, endpoint, state string }{
		{"tcp", "10.96.0.1:80", "10.244.0.1:8080", "ESTABLISHED"},
		{"tcp", "10.96.0.1:80", "10.244.0.1:8080", "TIME_WAIT"},
		{"tcp", "10.96.0.1:80", "10.244.0.9:8080", "ESTABLISHED"}, // removed endpoint
		{"tcp", "10.96.0.1:80", "10.96.0.1:80", "SYN_SENT"},       // not translated
		{"udp", "10.96.0.1:80", "10.244.0.1:8080", "REPLIED"},     // no virtual server
		{"tcp", "10.96.0.2:443", "10.244.0.3:443", "ESTABLISHED"},
		{"tcp", "10.96.0.2:444", "10.244.0.3:444", "ESTABLISHED"},
		{"tcp", "192.0.2.1:30080", "192.0.2.1:30080", "ESTABLISHED"},
		{"icmp", "10.96.0.2:0", "10.244.0.3:0", "REPLIED"},
	} {
		visit(kernel.Connection{Protocol: c.protocol, Virtual: at(c.virtual), Destination: at(c.endpoint), State: c.state})
	}
	counts.store(servers)
	got := map[string]kernel.DestinationStats{}
	for _, s := range servers {
		for _, d := range s.Destinations {
			got[d.Addr.String()] = d.Stats
		}
	}
	want := map[string]kernel.DestinationStats{
		"10.244.0.1:8080": {Active: 1, Inactive: 1}, "10.244.0.2:8080": {}, "10.244.0.3:0": {Active: 2}, "192.0.2.1:30080": {Active: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" || passed != 6 {
		t.Errorf("%d connections passed (-want +got):\n%s", passed, diff)
	}
}
