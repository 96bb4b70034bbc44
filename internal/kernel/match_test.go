package kernel_test

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestMatch(t *testing.T) {
	key := func(at string, p inet.Protocol) kernel.ServerKey {
		return kernel.ServerKey{Addr: netip.MustParseAddrPort(at), Protocol: p}
	}
	servers := map[kernel.ServerKey]kernel.ObservedServer{}
	for at, to := range map[string]string{"10.96.0.1:0": "10.244.0.1:0", "10.96.0.1:80": "10.244.0.2:8080"} {
		k := key(at, inet.TCP)
		servers[k] = kernel.ObservedServer{Server: kernel.Server{Key: k}, Destinations: []kernel.ObservedDestination{
			{Destination: kernel.Destination{Addr: netip.MustParseAddrPort(to)}},
		}}
	}
	for at, want := range map[kernel.ServerKey]string{
		key("10.96.0.1:80", inet.TCP):  "-t 10.96.0.1:80 10.244.0.2:8080",
		key("10.96.0.1:443", inet.TCP): "-t 10.96.0.1:0 10.244.0.1:443",
		key("10.96.0.1:443", inet.UDP): "",
		key("10.96.0.2:80", inet.TCP):  "",
	} {
		have := ""
		if server, exists := kernel.Match(servers, at); exists {
			have = server.Key.String() + " " + server.Destinations[0].Addr.String()
		}
		if have != want {
			t.Errorf("%s matches %q, want %q", at, have, want)
		}
	}
	if wide := servers[key("10.96.0.1:0", inet.TCP)]; wide.Destinations[0].Addr.Port() != 0 {
		t.Error("Match changed the state")
	}
}
