package explain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestConnectionLimits: an endpoint at its limit gets no connections. Below the limit, only few connections prove that it gets new ones.
func TestConnectionLimits(t *testing.T) {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort(clusterIPHTTP), Protocol: inet.TCP}
	for _, c := range []struct {
		limit kernel.Destination // of all endpoints but the last
		open  uint32
		last  uint32 // connections of the last one
		want  explain.Verdict
	}{
		{kernel.Destination{Upper: 20}, 20, 20, explain.Stops}, {kernel.Destination{Upper: 20}, 25, 25, explain.Stops},
		{kernel.Destination{Upper: 20}, 15, 15, explain.Unclear}, {kernel.Destination{Upper: 20}, 14, 14, explain.Passes},
		{kernel.Destination{Upper: 20, Lower: 10}, 10, 10, explain.Unclear}, {kernel.Destination{Upper: 20, Lower: 10}, 9, 9, explain.Passes},
		{kernel.Destination{Upper: 1}, 0, 0, explain.Passes}, {kernel.Destination{Upper: 1}, 1, 0, explain.Passes},
		{kernel.Destination{Upper: 20}, 25, 15, explain.Unclear}, {kernel.Destination{Upper: 20}, 15, 0, explain.Passes},
		{kernel.Destination{Upper: 20, Lower: 30}, 20, 20, explain.Stops},
	} {
		w := newWorld(t, web())
		destinations := w.kernel.Servers[key].Destinations
		for i := range destinations {
			d := &destinations[i]
			d.Upper, d.Lower, d.Stats.Active = c.limit.Upper, c.limit.Lower, c.open
			if i == len(destinations)-1 {
				d.Stats.Active = c.last
			}
		}
		if got := w.ask(clusterIPHTTP, outside); got.Verdict != c.want {
			t.Errorf("%+v: got %s, reasons %v", c, got.Verdict, got.Reasons)
		}
	}
}

// TestAffinityOverridesTheLimit: a client with affinity reaches its endpoint even if the endpoint is at its limit. With sh and mh, only the
// fallback sends other clients to other endpoints.
func TestAffinityOverridesTheLimit(t *testing.T) {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort(clusterIPHTTP), Protocol: inet.TCP}
	full := func(w *world) kernel.ObservedServer {
		s := w.kernel.Servers[key]
		s.Destinations[0].Upper, s.Destinations[0].Stats.Active = 20, 20
		return s
	}
	for _, c := range []struct {
		name   string
		change func(w *world, s *kernel.ObservedServer)
		from   string
		want   explain.Verdict
	}{
		{"another client", func(*world, *kernel.ObservedServer) {}, outside, explain.Stops},
		{"its client", func(w *world, s *kernel.ObservedServer) {
			w.kernel.Connections = append(w.kernel.Connections, kernel.Connection{
				Client: netip.AddrPortFrom(netip.MustParseAddr(outside), 0), Virtual: key.Addr, Destination: s.Destinations[0].Addr, Protocol: "tcp",
			})
		}, outside, explain.Passes},
		{"any client", func(*world, *kernel.ObservedServer) {}, "", explain.Depends},
	} {
		w := newWorld(t, web())
		s := full(w)
		s.Destinations = s.Destinations[:1]
		s.Flags, s.Timeout, s.MaskBits = kernel.FlagPersistent, 300, 32
		c.change(w, &s)
		w.kernel.Servers[key] = s
		got := w.ask(clusterIPHTTP, c.from)
		if verdict := worst(got.Causes, explain.Differs); verdict != c.want && (c.want != explain.Passes || got.Verdict != explain.Differs) {
			t.Errorf("%s: got %s\n%s", c.name, verdict, steps(got))
		}
	}
}

// worst returns the worst verdict of the causes, except for one that the test itself makes.
func worst(causes []explain.Cause, except explain.Verdict) explain.Verdict {
	found := explain.Passes
	for _, c := range causes {
		if c.Verdict != except && c.Verdict.Compare(found) < 0 {
			found = c.Verdict
		}
	}
	return found
}

// TestAffinityOfBothProtocols: a Service has the same port for TCP and UDP, as DNS does. A client's endpoint for one protocol, and its connections,
// say nothing about the other protocol.
func TestAffinityOfBothProtocols(t *testing.T) {
	s := web()
	s.AffinityTimeout = time.Hour
	s.Ports = append(s.Ports, model.ServicePort{Name: "udp", Protocol: inet.UDP, Port: 80})
	s.Slices[0].Ports = append(s.Slices[0].Ports, model.EndpointPort{Name: "udp", Protocol: inet.UDP, Port: 8080})
	endpoints := map[string]string{"tcp": pod, "udp": otherPod}
	for _, mode := range []kernel.Mode{kernel.IPVSWithIPTables, kernel.NFTablesOnly} {
		cfg := compiletest.Config()
		cfg.Mode = mode
		w := newWorldWith(t, cfg, s)
		for _, port := range []uint16{0, 4711} { // templates, and open connections
			for protocol, endpoint := range endpoints {
				w.kernel.Connections = append(w.kernel.Connections, kernel.Connection{
					Protocol: strings.ToUpper(protocol), Client: netip.AddrPortFrom(netip.MustParseAddr(outside), port), State: "NONE",
					Virtual: netip.MustParseAddrPort(clusterIPHTTP), Destination: netip.MustParseAddrPort(endpoint + ":8080"), Expires: 3000,
				})
			}
		}
		for range 2 {
			slices.Reverse(w.kernel.Connections)
			for protocol, endpoint := range endpoints {
				e := w.ask(clusterIPHTTP+"/"+protocol, outside)
				if len(e.Endpoints) != 1 || e.Endpoints[0].Address.Addr().String() != endpoint {
					t.Errorf("mode %v, %s: want the endpoint %s, got\n%s", mode, protocol, endpoint, steps(e))
				}
				if text := steps(e); !strings.Contains(text, "continue to "+endpoint+":8080;") {
					t.Errorf("mode %v, %s: want open connections to %s only, got\n%s", mode, protocol, endpoint, text)
				}
			}
		}
	}
}
