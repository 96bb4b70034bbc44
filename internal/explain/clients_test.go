package explain_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestVictims: for each foreign rule that stops only some pods, Victims returns one of these, but none for rules of network policies. The rarest
// rules come first.
func TestVictims(t *testing.T) {
	w := newWorld(t, everyKind()...)
	w.kernel.Routes = map[netip.Addr]kernel.Route{}
	var pods []netip.Addr
	for i := range 6 {
		pod := netip.AddrFrom4([4]byte{10, 244, 9, byte(i)})
		w.kernel.Routes[pod] = kernel.Route{Interface: fmt.Sprintf("cali%d", i)}
		pods = append(pods, pod)
	}
	to := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.1.11:80"), Protocol: inet.TCP}
	for _, d := range w.kernel.Servers[to].Destinations {
		w.kernel.Routes[d.Addr.Addr()] = kernel.Route{Interface: "eth0"}
	}
	known := []explain.Question{{To: to, From: pods[0]}}
	if victims, policed, left := w.kernel.Victims(known, pods, 9); len(victims)+len(policed)+left > 0 {
		t.Fatalf("without foreign rules: %v, %v, %d left", victims, policed, left)
	}
	w.insert("raw", "PREROUTING", "-s 10.244.9.4/31 -j DROP")
	w.insert("raw", "PREROUTING", "-i cali1 -j DROP")
	w.insert("mangle", "POSTROUTING", "-o cali2 -m string --string x --algo bm -j DROP")
	w.insert("filter", "INPUT", "-s 10.244.9.0/24 -m string --string y --algo bm -j DROP") // also stops the known connection
	w.insert("filter", "cali-fw-cali3", "-j DROP")
	w.insert("filter", "INPUT", "-i cali3 -j cali-fw-cali3")
	victims, policed, left := w.kernel.Victims(known, pods, 9)
	want := []explain.Question{{To: to, From: pods[1]}, {To: to, From: pods[2]}, {To: to, From: pods[4]}}
	if !slices.Equal(victims, want) || !slices.Equal(policed, pods[3:4]) || left != 0 {
		t.Errorf("victims %v, policed %v, %d left", victims, policed, left)
	}
	w.kernel.OtherSets = map[string]kernel.OtherSet{"large": {Elements: make([]kernel.OtherElement, 60_000_000)}}
	if victims, _, left := w.kernel.Victims(known, pods, 9); len(victims) > 0 || left != len(pods) {
		t.Errorf("%v, %d left", victims, left)
	}
}

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
