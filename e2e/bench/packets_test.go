package bench

import (
	"net/netip"
	"testing"
	"time"
)

const packetsSent = 10_000

// packets measures the cost of packets from a pod to a ClusterIP and directly to the endpoint.
func (b *bench) packets(t *testing.T, result *Result) {
	cost := func(kind string, at ...netip.AddrPort) (direct, served Cost) {
		times, err := probe{Kind: kind, At: at, Limit: time.Minute, Count: packetsSent}.on(b.client)
		if err != nil {
			t.Fatal(err)
		}
		return Cost(times[0] / packetsSent), Cost(times[1] / packetsSent)
	}
	var p Packets
	endpoint := netip.AddrPortFrom(datagramEndpoint, endpointPort)
	p.DirectFirst, p.First = cost("first", endpoint, datagramSvc)
	p.Direct, p.Later = cost("later", endpoint, datagramSvc)
	result.Packets = &p
}

// serveAlone configures IPVS without rules or conntrack. No program can make packets cheaper than this.
func (b *bench) serveAlone(t *testing.T) {
	b.node.MustRun(t, "ip", "link", "add", "alone", "type", "dummy")
	b.node.MustRun(t, "ip", "address", "add", datagramSvc.Addr().String(), "dev", "alone")
	b.node.MustRun(t, "ipvsadm", "-A", "-u", datagramSvc.String(), "-s", "rr")
	b.node.MustRun(t, "ipvsadm", "-a", "-u", datagramSvc.String(), "-r", netip.AddrPortFrom(datagramEndpoint, endpointPort).String(), "-m")
}
