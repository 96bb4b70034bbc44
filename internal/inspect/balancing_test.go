package inspect_test

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

var shopAt = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:0"), Protocol: inet.TCP}

func shopKernel() inspect.Servers {
	d := func(addr string, weight, active uint32) kernel.ObservedDestination {
		return kernel.ObservedDestination{
			Destination: kernel.Destination{Addr: netip.MustParseAddrPort(addr), Weight: weight}, Stats: kernel.DestinationStats{Active: active},
		}
	}
	return inspect.Servers{shopAt: {
		Server:       kernel.Server{Key: shopAt, Scheduler: "rr", Flags: kernel.FlagPersistent, Timeout: 60, MaskBits: 32},
		Destinations: []kernel.ObservedDestination{d("10.244.0.1:0", 1, 2), d("10.244.0.2:0", 0, 0), d("10.244.0.3:0", 0, 1)},
	}}
}

func shopView() view.Service {
	front := func(port, at string) view.Frontend {
		f := view.Frontend{Port: port, Kind: view.ClusterIP, Address: netip.MustParseAddrPort(at), Protocol: "tcp", State: view.Served, AllPorts: true}
		for pod, state := range map[string]view.EndpointState{"10.244.0.1": view.Ready, "10.244.0.2": view.Stopped, "10.244.0.3": view.Stopped} {
			f.Endpoints = append(f.Endpoints, view.Endpoint{
				Address: netip.AddrPortFrom(netip.MustParseAddr(pod), f.Address.Port()), Pod: "default/" + pod, State: state,
			})
		}
		return f
	}
	return view.Service{Namespace: "default", Name: "shop", Frontends: []view.Frontend{front("http", "10.96.0.1:80"), front("https", "10.96.0.1:443")}}
}

// An endpoint with weight 0 is drained when it has no connections left. A port without its own virtual server shows
// the counters of the all-ports server.
func TestDrainedAndAllPorts(t *testing.T) {
	list := inspect.ServiceListOf([]view.Service{shopView()}, shopKernel(), kernel.IPVSWithIPTables)
	for _, f := range list.Items[0].Frontends {
		states := map[string]view.EndpointState{}
		for _, e := range f.Endpoints {
			states[e.Address.String()] = e.State
		}
		at := func(pod string) string {
			return netip.AddrPortFrom(netip.MustParseAddr(pod), f.Address.Port()).String()
		}
		if f.State != view.Served || f.Connections == nil || f.Connections.Active != 3 || len(states) != 3 ||
			states[at("10.244.0.1")] != view.Ready || states[at("10.244.0.2")] != view.Drained || states[at("10.244.0.3")] != view.Stopped {
			t.Errorf("%s: %s %+v %v", f.Address, f.State, f.Connections, states)
		}
	}
}

// TestConnectionsOfAllPorts: an affinity entry for all ports belongs to the Service, but to none of its ports.
func TestConnectionsOfAllPorts(t *testing.T) {
	conn := func(client, virtual, to string) kernel.Connection {
		return kernel.Connection{
			Protocol: "TCP", Client: netip.MustParseAddrPort(client), Virtual: netip.MustParseAddrPort(virtual), Destination: netip.MustParseAddrPort(to),
		}
	}
	list := inspect.Connections([]kernel.Connection{
		conn("192.0.2.9:0", "10.96.0.1:0", "10.244.0.1:0"), conn("192.0.2.9:4711", "10.96.0.1:80", "10.244.0.1:80"),
	}, inspect.ServiceListOf([]view.Service{shopView()}, shopKernel(), kernel.IPVSWithIPTables))
	if len(list.Items) != 2 {
		t.Fatalf("%+v", list.Items)
	}
	for i, want := range []string{" default/10.244.0.1", "http default/10.244.0.1"} {
		if c := list.Items[i]; c.Port+" "+c.Pod != want || c.Name != "shop" || c.Affinity != (i == 0) {
			t.Errorf("%+v, want %q", c, want)
		}
	}
}
