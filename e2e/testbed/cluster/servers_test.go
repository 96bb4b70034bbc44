package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestVirtualServers(t *testing.T) {
	labtest.Need(t)
	c := New(t, Config{Nodes: 1, Clients: -1})
	node := c.Nodes[0]
	for _, at := range []string{"10.96.0.10:80", "[fd00:10:96::10]:80"} {
		node.MustRun(t, "ipvsadm", "-A", "-t", at, "-s", "rr", "-p", "600")
		node.MustRun(t, "ipvsadm", "-a", "-t", at, "-r", next(at).String(), "-m", "-w", "0")
		node.MustRun(t, "ipvsadm", "-A", "-u", at, "-s", "mh")
	}
	servers, err := node.VirtualServers()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"10.96.0.10:80", "[fd00:10:96::10]:80"} {
		tcp, udp := servers[VirtualKey(TCP, at)], servers[VirtualKey(UDP, at)]
		if fmt.Sprint(tcp.Weights) != fmt.Sprint(map[netip.AddrPort]int{next(at): 0}) || !tcp.Persistent || tcp.Scheduler != "rr" {
			t.Errorf("TCP %s: %+v in %+v", at, tcp, servers)
		}
		if len(udp.Weights) != 0 || udp.Persistent || udp.Scheduler != "mh" {
			t.Errorf("UDP %s: %+v", at, udp)
		}
	}
}

func next(at string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddrPort(at).Addr().Next(), 8080)
}
