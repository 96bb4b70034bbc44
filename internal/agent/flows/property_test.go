package flows

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// These generators have few values, so that virtual servers, endpoints and flows often share them.
var (
	anyAddr     = rapid.Map(rapid.IntRange(0, 3), func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}) })
	anyPort     = rapid.SampledFrom([]uint16{0, 53, 80})
	anyProtocol = rapid.SampledFrom([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP})
	anyKey      = rapid.Custom(func(t *rapid.T) kernel.ServerKey {
		return kernel.ServerKey{Addr: netip.AddrPortFrom(anyAddr.Draw(t, "address"), anyPort.Draw(t, "port")), Protocol: anyProtocol.Draw(t, "protocol")}
	})
	anyFlow = rapid.Custom(func(t *rapid.T) kernel.Flow {
		key, oneWay := anyKey.Draw(t, "key"), rapid.Bool().Draw(t, "one way")
		return kernel.Flow{
			Key: key, Client: netip.AddrPortFrom(anyAddr.Draw(t, "client"), 4000),
			Endpoint:    netip.AddrPortFrom(anyAddr.Draw(t, "endpoint"), anyPort.Draw(t, "target")),
			Unanswered:  oneWay && key.Protocol == inet.TCP && rapid.Bool().Draw(t, "unanswered"),
			OneWay:      oneWay,
			Masqueraded: rapid.Bool().Draw(t, "masqueraded"),
		}
	})
	anyOp = rapid.Custom(func(t *rapid.T) kernel.Op {
		key, verb := anyKey.Draw(t, "changed"), rapid.SampledFrom([]kernel.Verb{kernel.Create, kernel.Update, kernel.Delete}).Draw(t, "verb")
		return kernel.Op{Verb: verb, Object: rapid.SampledFrom([]kernel.Object{
			kernel.Server{Key: key}, kernel.ServerDestination{Server: key}, kernel.BoundAddress{Addr: key.Addr.Addr()},
			kernel.Member{Element: kernel.Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port()}},
		}).Draw(t, "object")}
	})
)

func TestGoodFlowsStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		have, foreign := kernel.NewState(), map[kernel.ServerKey]bool{}
		for key, endpoint := range rapid.MapOf(anyKey, anyAddr).Draw(t, "servers") {
			have.Servers[key] = with(key, netip.AddrPortFrom(endpoint, key.Addr.Port())).Servers[key]
			foreign[key] = rapid.Bool().Draw(t, "foreign")
		}
		masqueraded := rapid.SampledFrom([]inet.Protocol{0, inet.TCP, inet.UDP}).Draw(t, "masqueraded")
		f := quiet()
		f.todo.all = rapid.Bool().Draw(t, "first check")
		for _, op := range rapid.SliceOf(anyOp).Draw(t, "changes") {
			f.Note(op, nil, have)
		}
		if rapid.Bool().Draw(t, "unmasqueraded") {
			f.Unmasqueraded()
		}
		check := f.Begin(Surroundings{
			Have: have, Ours: func(key kernel.ServerKey) bool { return !foreign[key] },
			Ports:       func(kernel.ServerKey) []uint16 { return []uint16{0, 53, 80} },
			Masquerades: func(port kernel.ServerKey) bool { return port.Protocol == masqueraded },
		})
		for _, flow := range rapid.SliceOf(anyFlow).Draw(t, "flows") {
			server, exists := kernel.Match(have.Servers, flow.Key)
			good := isGood(flow, server, masqueraded) || exists && foreign[server.Key]
			_, answersEnded := check.ended[client{flow.Key.Addr, flow.Key.Protocol}]
			if check.Stale(flow) && good && !answersEnded {
				t.Fatalf("flow %+v was ended; it matches %+v (foreign: %t)", flow, server, foreign[server.Key])
			}
		}
	})
}

func isGood(flow kernel.Flow, server kernel.ObservedServer, masqueraded inet.Protocol) bool {
	if flow.Key.Protocol == inet.TCP && !flow.Unanswered {
		return true
	}
	leads := slices.ContainsFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == flow.Endpoint })
	returns := flow.Key.Protocol != masqueraded && flow.Client.Addr() != flow.Key.Addr.Addr() && flow.Client.Addr() != flow.Endpoint.Addr()
	return leads && (!flow.OneWay || flow.Masqueraded || returns)
}
