package userspace

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

func server(at string, protocol inet.Protocol) *want.Server {
	return &want.Server{
		Server: kernel.Server{Key: kernel.ServerKey{Addr: netip.MustParseAddrPort(at), Protocol: protocol}},
		Owner:  model.ServicePortRef{Service: model.ServiceID{Namespace: "default", Name: "web"}, Port: "http"},
	}
}

// TestListeners: a listener uses the node port if any process may listen there, and otherwise a free port.
func TestListeners(t *testing.T) {
	for _, c := range []struct {
		server *want.Server
		want   string
	}{
		{server("127.0.0.1:30080", inet.TCP), "tcp 127.0.0.1:30080, node port 30080"},
		{server("127.0.0.1:1024", inet.UDP), "udp 127.0.0.1:1024, node port 1024"},
		{server("127.0.0.1:1023", inet.TCP), "tcp 127.0.0.1:0, node port 1023"},
		{server("[::1]:30080", inet.TCP), "tcp [::1]:30080, node port 30080"},
		{server("10.96.0.10:80", inet.TCP), "tcp 127.0.0.1:0, 10.96.0.10:80"},
		{server("[fd00::10]:53", inet.UDP), "udp [::1]:0, [fd00::10]:53"},
	} {
		f := frontendOf(c.server)
		if got := fmt.Sprintf("%s, %s", f.listen, f.serves); got != c.want {
			t.Errorf("%s: %s, want %s", c.server.Key, got, c.want)
		}
		if free := f.listen.At.Port() == 0; free != (f.listen.Name != "") {
			t.Errorf("%s: the listener's name is %q", c.server.Key, f.listen.Name)
		}
	}
}

func TestTargets(t *testing.T) {
	s := server("10.96.0.10:80", inet.TCP)
	s.Destinations = []kernel.Destination{{Addr: netip.MustParseAddrPort("10.244.1.5:8080"), Weight: 2}, {Addr: netip.MustParseAddrPort("10.244.1.6:8080")}}
	if f := frontendOf(s); f.target.Affinity != 0 || len(f.target.Endpoints) != 2 || f.target.Endpoints[0].Weight != 2 || f.taking() != 1 {
		t.Errorf("target %+v", f.target)
	}
	s.Flags, s.Timeout, s.MaskBits = kernel.FlagPersistent, 10800, 24
	if got := frontendOf(s).target; got.Affinity != 3*time.Hour || got.AffinityBits != 24 {
		t.Errorf("affinity of %s to %d bits", got.Affinity, got.AffinityBits)
	}
	for flags, header := range map[uint32]forward.Header{0: 0, kernel.FlagProxyV1: forward.ProxyV1, kernel.FlagProxyV2 | kernel.FlagPersistent: forward.ProxyV2} {
		if s.Flags = flags; frontendOf(s).target.Header != header {
			t.Errorf("flags %x: header %d, want %d", flags, frontendOf(s).target.Header, header)
		}
	}
}
