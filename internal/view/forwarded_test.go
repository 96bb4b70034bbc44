package view

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestForwardedArrives: a command receives what the agent's process has counted, as if the kernel had counted it.
func TestForwardedArrives(t *testing.T) {
	at, client, endpoint := netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.244.1.7:40000"), netip.MustParseAddrPort("10.244.1.5:5353")
	through := kernel.Counters{Connections: 7, InPackets: 6, OutPackets: 5, InBytes: 400, OutBytes: 300}
	counted := kernel.TableDestination{Addr: endpoint, Weight: 3, Active: 2, Inactive: 1, Stats: kernel.Counters{Connections: 6, InBytes: 200}}
	connections := []kernel.Connection{{Protocol: "UDP", Client: client, Virtual: at, Destination: endpoint, State: "UDP", Expires: 9}}
	sent, err := json.Marshal(ForwardedOf([]kernel.TableServer{{
		Key: kernel.TableKey{Family: inet.IPv4, Protocol: inet.UDP, Addr: at}, Scheduler: "wrr", Stats: through, Destinations: []kernel.TableDestination{counted},
	}}, connections))
	if err != nil {
		t.Fatal(err)
	}
	var received Forwarded
	if err := json.Unmarshal(sent, &received); err != nil {
		t.Fatal(err)
	}
	key := kernel.ServerKey{Addr: at, Protocol: inet.UDP}
	servers, counts := received.Observed()
	wantServers := map[kernel.ServerKey]kernel.ObservedServer{key: {
		Server: kernel.Server{Key: key, Scheduler: "wrr"},
		Destinations: []kernel.ObservedDestination{{
			Destination: kernel.Destination{Addr: endpoint, Weight: 3}, Stats: kernel.DestinationStats{Active: 2, Inactive: 1},
		}},
	}}
	if !reflect.DeepEqual(servers, wantServers) {
		t.Errorf("virtual servers %+v, want %+v", servers, wantServers)
	}
	wantCounts := map[kernel.ServerKey]kernel.Traffic{key: {Counters: through, Endpoints: map[netip.AddrPort]kernel.TableDestination{endpoint: counted}}}
	if !reflect.DeepEqual(counts, wantCounts) {
		t.Errorf("counters %+v, want %+v", counts, wantCounts)
	}
	if got := received.Tracked(); !reflect.DeepEqual(got, connections) {
		t.Errorf("connections %+v, want %+v", got, connections)
	}
}
