package bench

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

const (
	packetsSent = 10_000
	// answeredPort is below the source ports of all other flows.
	answeredPort = 1000
)

// packets measures the cost of packets from a pod to a ClusterIP and directly to the endpoint.
func (b *bench) packets(t *testing.T, result *Result) {
	cost := func(kind string, at ...netip.AddrPort) (direct, served Cost) {
		times := b.send(t, probe{Kind: kind, At: at, Count: packetsSent})
		return Cost(times[0] / packetsSent), Cost(times[1] / packetsSent)
	}
	var p Packets
	endpoint := netip.AddrPortFrom(datagramEndpoint, endpointPort)
	p.DirectFirst, p.First = cost("first", endpoint, datagramSvc)
	p.Direct, p.Later = cost("later", endpoint, datagramSvc)
	p.Answered = b.answered(t)
	result.Packets = &p
}

// answered measures the packets of a flow after its endpoint has replied once.
func (b *bench) answered(t *testing.T) Cost {
	t.Helper()
	flow := probe{Kind: "later", At: []netip.AddrPort{datagramSvc}, Port: answeredPort, Count: 1}
	b.send(t, flow)
	if _, err := b.endpoint.WriteTo([]byte("reply"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.client.V4, answeredPort))); err != nil {
		t.Fatal(err)
	}
	flow.Count = packetsSent
	return Cost(b.send(t, flow)[0] / packetsSent)
}

func (b *bench) send(t *testing.T, p probe) []time.Duration {
	t.Helper()
	p.Limit = time.Minute
	times, err := p.on(b.client)
	if err != nil {
		t.Fatal(err)
	}
	return times
}

// withoutProgram contains the cases without a program, by their names in the Makefile.
var withoutProgram = map[string]struct {
	name  string
	serve func(*bench, *testing.T)
}{
	"ipvs-alone":     {aloneProgram, (*bench).serveAlone},
	"ipvs-conntrack": {trackedProgram, (*bench).serveTracked},
}

// serveAlone configures IPVS without rules or conntrack. No program can make packets cheaper than this.
func (b *bench) serveAlone(t *testing.T) {
	b.node.MustRun(t, "ip", "link", "add", "alone", "type", "dummy")
	b.node.MustRun(t, "ip", "address", "add", datagramSvc.Addr().String(), "dev", "alone")
	b.node.MustRun(t, "ipvsadm", "-A", "-u", datagramSvc.String(), "-s", "rr")
	b.node.MustRun(t, "ipvsadm", "-a", "-u", datagramSvc.String(), "-r", netip.AddrPortFrom(datagramEndpoint, endpointPort).String(), "-m")
}

// serveTracked adds what any program needs that masquerades some connections: connection tracking and one rule in table
// nat. The rule matches no packet of the measured flows.
func (b *bench) serveTracked(t *testing.T) {
	b.serveAlone(t)
	b.node.MustRun(t, "sysctl", "-w", "net.ipv4.vs.conntrack=1")
	b.node.MustRun(t, "iptables", "-t", "nat", "-A", "POSTROUTING", "-m", "mark", "--mark", "0x4000/0x4000", "-j", "MASQUERADE")
}
