package inspect_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestFlows: events name the Service and the pods of both ends. Other connections are left out.
func TestFlows(t *testing.T) {
	shop := shopView()
	names := inspect.FlowNamesOf([]view.Service{shop}, []view.Service{shop})
	frontend := shop.Frontends[0]
	endpoint := frontend.Endpoints[0]
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	flow := kernel.Flow{Key: kernel.ServerKey{Addr: frontend.Address, Protocol: inet.TCP}, Client: netip.MustParseAddrPort("10.244.0.2:41000"), Endpoint: endpoint.Address}
	begins, is := names.Event(kernel.FlowEvent{Flow: flow})
	if !is || begins.Event != view.FlowNew || begins.Name != shop.Name || begins.Pod != endpoint.Pod || begins.Answered != nil || begins.ClientPod == "" {
		t.Errorf("%t %+v", is, begins)
	}
	ends, _ := names.Event(kernel.FlowEvent{
		Flow: flow, At: at, Ended: true, Answered: true, Counted: true, Packets: 7, BytesIn: 800, BytesOut: 90_000, Lasted: 1500 * time.Millisecond,
	})
	if line := inspect.FlowLine(ends); !strings.HasPrefix(line, "03:04:05.006  ENDED   default/shop:http/tcp") || !strings.HasSuffix(line, "1.5 s, 7 packets, 800 bytes in, 90k out") {
		t.Error(line)
	}
	silent := flow
	silent.Endpoint = flow.Key.Addr // no endpoint was selected
	if e, _ := names.Event(kernel.FlowEvent{Flow: silent, Ended: true}); !strings.HasSuffix(inspect.FlowLine(e), "no answer") || !strings.Contains(inspect.FlowLine(e), "none") {
		t.Error(e)
	}
	elsewhere := flow
	elsewhere.Key.Addr = netip.MustParseAddrPort("198.51.100.1:443")
	if e, is := names.Event(kernel.FlowEvent{Flow: elsewhere}); is {
		t.Errorf("a connection that leads to no Service has the event %+v", e)
	}
	if text, err := json.Marshal(view.FlowEvent{Time: at, Event: view.FlowsLost}); err != nil || string(text) != `{"time":"2026-01-02T03:04:05.006Z","event":"LOST"}` {
		t.Errorf("%s, %v", text, err)
	}
}
