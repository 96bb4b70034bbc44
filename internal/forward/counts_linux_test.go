package forward

import (
	"io"
	"net/netip"
	"testing"
	"time"
)

// TestConnectionsAndTraffic: open connections, flows and clients with affinity are listed, and traffic is counted for the listener and
// for each endpoint.
func TestConnectionsAndTraffic(t *testing.T) {
	f, tcp, udp := open(t, limits), freePort(t, TCP), freePort(t, UDP)
	web, dns := startEndpoint(t, "web"), startUDP(t, "dns")
	setTarget(t, f, tcp, Target{Endpoints: []Endpoint{{web, 1}, {deadEndpoint(t), 0}}, Affinity: time.Hour, AffinityBits: 24})
	set(t, f, udp, dns)
	client, asking := mustDial(t, tcp), udpClient(t, udp)
	if got := ask(t, asking, "hello"); got != "dns:hello" {
		t.Fatal(got)
	}
	served, all := f.Served(), f.Connections(time.Now())
	listed := map[Connection]bool{}
	for _, c := range all {
		if (c.Expires == 0) != (c.Protocol == TCP && c.Client.Port() != 0) {
			t.Errorf("%+v expires in %s", c, c.Expires)
		}
		c.Expires = 0
		listed[c] = true
	}
	for _, want := range []Connection{
		{Listen: tcp, Client: client.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort(), Endpoint: web},
		{Listen: tcp, Client: netip.MustParseAddrPort("127.0.0.0:0"), Endpoint: web},
		{Listen: udp, Client: asking.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort(), Endpoint: dns},
	} {
		if !listed[want] || len(all) != 3 {
			t.Errorf("%+v is not in %+v", want, all)
		}
	}
	s, ends := served[tcp], served[tcp].Endpoints
	if got := [...]uint64{s.Connections, uint64(ends[0].Open), ends[0].Connections, ends[1].Connections}; got != [...]uint64{1, 1, 1, 0} {
		t.Errorf("TCP: %+v", s)
	}
	if s = served[udp]; s.Endpoints[0].Flows != 1 || s.PacketsIn == 0 || s.BytesIn == 0 || s.BytesOut == 0 {
		t.Errorf("UDP: %+v", s)
	}
}

// TestTrafficStaysCounted: what connections have carried stays counted after they have ended.
func TestTrafficStaysCounted(t *testing.T) {
	f, tcp, web := open(t, limits), freePort(t, TCP), startEndpoint(t, "web")
	set(t, f, tcp, web)
	client := mustDial(t, tcp)
	eventually(t, func() bool { return f.Served()[tcp].PacketsOut > 0 }) // within a second
	served := f.Served()
	open := served[tcp].Endpoints[0].Traffic
	if open.BytesOut != uint64(len("web\n")) || open.PacketsIn == 0 || open != served[tcp].Traffic {
		t.Errorf("while the connection is open: %+v", open)
	}
	_ = client.Close()
	eventually(t, func() bool { return f.Counts().Connections == 0 })
	served = f.Served()
	if s := served[tcp]; s.Endpoints[0].Open != 0 || s.BytesOut < open.BytesOut || s.BytesIn < open.BytesIn || s.Endpoints[0].Traffic != s.Traffic {
		t.Errorf("after the end: %+v, before: %+v", s, open)
	}
	set(t, f, tcp, startEndpoint(t, "another"))
	if s := f.Served(); s[tcp].BytesOut != served[tcp].BytesOut || s[tcp].Endpoints[0].Traffic != (Traffic{}) {
		t.Errorf("after the endpoint was replaced: %+v", s[tcp])
	}
}

// TestCountsGrow: the counters of an open connection grow while it carries data.
func TestCountsGrow(t *testing.T) {
	f, at := open(t, limits), freePort(t, TCP)
	set(t, f, at, startEndpoint(t, "web"))
	client := mustDial(t, at)
	for range 3 {
		before := f.Served()
		if _, err := io.WriteString(client, "more\n"); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return f.Served()[at].BytesIn >= before[at].BytesIn+5 })
	}
}

// The counters never decrease, because a metric would then count everything again: a connection that is older than its listener
// counts for no listener, and one that is older than its endpoint's return counts for the listener only.
func TestCountersNeverDecrease(t *testing.T) {
	for name, again := range map[string]func(*Forwarder, Listen) error{
		"the port was closed": func(f *Forwarder, at Listen) error { return f.Remove(at) },
		"the endpoint left":   func(f *Forwarder, at Listen) error { _, err := f.Set(at, Target{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			f, at, web := open(t, limits), freePort(t, TCP), startEndpoint(t, "web")
			set(t, f, at, web)
			client := mustDial(t, at)
			if err := again(f, at); err != nil {
				t.Fatal(err)
			}
			set(t, f, at, web)
			before := f.Served()
			client.echoes(t)
			_ = client.Close()
			eventually(t, func() bool { return f.Counts().Connections == 0 })
			after := f.Served()
			if b, a := before[at], after[at]; a.BytesOut < b.BytesOut || a.Endpoints[0].BytesOut < b.Endpoints[0].BytesOut {
				t.Errorf("before the end: %+v, after: %+v", b, a)
			}
		})
	}
}
