package explain_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestOutsiders: clients with half-open connections come first, and this node is not a client on another machine.
func TestOutsiders(t *testing.T) {
	k := &explain.Kernel{State: &kernel.State{}, NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for i := range 50 {
		state := "ESTABLISHED"
		if i == 49 {
			state = "SYN_RECV"
		}
		k.Connections = append(k.Connections, kernel.Connection{Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 4000), State: state})
	}
	clients := fmt.Sprint(k.Outsiders())
	if !strings.HasPrefix(clients, "[192.0.2.49 192.0.2.0 192.0.2.2") || strings.Count(clients, "192") != 32 {
		t.Error(clients)
	}
}
