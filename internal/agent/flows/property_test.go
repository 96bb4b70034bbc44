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
		key := anyKey.Draw(t, "key")
		return kernel.Flow{
			Key: key, Client: netip.AddrPortFrom(anyAddr.Draw(t, "client"), 4000),
			Endpoint:   netip.AddrPortFrom(anyAddr.Draw(t, "endpoint"), anyPort.Draw(t, "target")),
			Unanswered: key.Protocol == inet.TCP && rapid.Bool().Draw(t, "unanswered"),
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
		f := quiet()
		f.todo.all = rapid.Bool().Draw(t, "first check")
		for _, op := range rapid.SliceOf(anyOp).Draw(t, "changes") {
			f.Note(op, nil, have)
		}
		check := f.Begin(Surroundings{
			Have: have, Ours: func(key kernel.ServerKey) bool { return !foreign[key] },
			Ports: func(kernel.ServerKey) []uint16 { return []uint16{0, 53, 80} },
		})
		for _, flow := range rapid.SliceOf(anyFlow).Draw(t, "flows") {
			server, exists := kernel.Match(have.Servers, flow.Key)
			leads := exists && slices.ContainsFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == flow.Endpoint })
			answered := flow.Key.Protocol == inet.TCP && !flow.Unanswered
			_, answersEnded := check.ended[client{flow.Key.Addr, flow.Key.Protocol}]
			if check.Stale(flow) && (answered || leads || exists && foreign[server.Key]) && !answersEnded {
				t.Fatalf("flow %+v was ended; it matches %+v (foreign: %t)", flow, server, foreign[server.Key])
			}
		}
	})
}
