package inspect

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestWritePorts: the state of a port says which header endpoints get, and why it is not served.
func TestWritePorts(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:30080")
	ports := []view.ForwardedPort{
		{Namespace: "shop", Name: "web", Port: "http", Protocol: "tcp", Address: at, Serves: "node port 30080", Endpoints: 2, ProxyProtocol: 2, State: view.PortListening},
		{Namespace: "shop", Name: "web", Port: "dns", Protocol: "udp", Address: at, Serves: "10.96.0.10:53", Endpoints: 1, State: view.PortFailed, Reason: "in use"},
	}
	var b strings.Builder
	if err := WritePorts(&b, ports, Table{NoHeaders: true}); err != nil {
		t.Fatal(err)
	}
	want := `shop   web   http   127.0.0.1:30080/tcp   node port 30080   2   Listening (PROXY protocol v2)
shop   web   dns    127.0.0.1:30080/udp   10.96.0.10:53     1   Failed: in use
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
