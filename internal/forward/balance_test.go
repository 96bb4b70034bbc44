package forward

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	a, b, c = netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:80"), netip.MustParseAddrPort("192.0.2.3:80")
	names   = map[netip.AddrPort]string{a: "a", b: "b", c: "c"}
	now     = time.Unix(1_000_000, 0)
)

func picks(from *balancer, n int, client string) string {
	var picked strings.Builder
	for range n {
		to, _, _ := from.pick(netip.MustParseAddr(client), now, nil)
		picked.WriteString(names[to])
	}
	return picked.String()
}

func target(weights ...uint32) Target {
	t := Target{}
	for i, w := range weights {
		t.Endpoints = append(t.Endpoints, Endpoint{[]netip.AddrPort{a, b, c}[i], w})
	}
	return t
}

// TestWeightsOfAnotherScale: credit from large weights does not give one endpoint all clients after the weights become small.
func TestWeightsOfAnotherScale(t *testing.T) {
	balancer := newBalancer(target(1000, 1, 1))
	picks(balancer, 334, "127.0.0.1")
	balancer.set(target(0, 1, 1))
	if got := picks(balancer, 10, "127.0.0.1"); strings.Count(got, "b") < 3 || strings.Count(got, "c") < 3 {
		t.Errorf("picked %s", got)
	}
}

func TestRoundRobinByWeight(t *testing.T) {
	for _, one := range []struct {
		target Target
		want   string
	}{
		{target(1, 1, 1), "abcabc"},
		{target(2, 1, 1), "abcaabca"},
		{target(4, 0, 1), "aacaaaacaa"},
		{target(0, 65535), "bbb"},
	} {
		if got := picks(newBalancer(one.target), len(one.want), "127.0.0.1"); got != one.want {
			t.Errorf("%v: picked %s, want %s", one.target.Endpoints, got, one.want)
		}
	}
	if _, _, ok := newBalancer(target(0)).pick(a.Addr(), now, nil); ok {
		t.Error("an endpoint with weight 0 was picked")
	}
	balancer := newBalancer(target(1, 1, 1))
	if got := picks(balancer, 1, "127.0.0.1"); got != "a" {
		t.Errorf("picked %s", got)
	}
	if balancer.set(target(1, 1, 1)) {
		t.Error("the same target counts as a change")
	}
	balancer.set(target(1, 1)) // the turns go on
	if got := picks(balancer, 1, "127.0.0.1"); got != "b" {
		t.Errorf("after a change, picked %s, want b", got)
	}
}

func TestPickTriesOthers(t *testing.T) {
	balancer, tried := newBalancer(target(1, 1, 0)), []netip.AddrPort{}
	for {
		to, _, ok := balancer.pick(a.Addr(), now, tried)
		if !ok {
			break
		}
		tried = append(tried, to)
	}
	if !slices.Equal(tried, []netip.AddrPort{a, b}) {
		t.Errorf("tried %v", tried)
	}
}

func TestAffinity(t *testing.T) {
	t1 := target(1, 1, 1)
	t1.Affinity, t1.AffinityBits = time.Minute, 24
	balancer := newBalancer(t1)
	connect := func(client string, at time.Time) string {
		from := netip.MustParseAddr(client)
		to, _, _ := balancer.pick(from, at, nil)
		balancer.connected(from, to, at)
		return names[to]
	}
	var got []string
	for _, client := range []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "::ffff:10.0.0.3"} { // the first 24 bits decide
		got = append(got, connect(client, now))
	}
	got = append(got, connect("10.0.0.1", now.Add(59*time.Second)), connect("10.0.0.1", now.Add(118*time.Second)))
	got = append(got, connect("10.0.0.1", now.Add(179*time.Second))) // more than a minute after the last connection
	t1.Endpoints[2].Weight = 0
	balancer.set(t1) // the client's endpoint gets no new connections
	got = append(got, connect("10.0.0.1", now.Add(180*time.Second)))
	if want := "a a b a a a c a"; strings.Join(got, " ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, " "), want)
	}
}

// TestAffinityIsBounded: the clients that have not connected for the longest time are forgotten first.
func TestAffinityIsBounded(t *testing.T) {
	t1 := target(1)
	t1.Affinity = time.Hour
	balancer := newBalancer(t1)
	address := func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.0.%d.%d", i/256, i%256)) }
	balancer.connected(address(0), a, now)
	for i := range maxClients {
		balancer.connected(address(i+1), a, now)
		balancer.connected(address(0), a, now)
	}
	has := func(i int) bool {
		_, ok := balancer.clients.use(balancer.group(address(i)))
		return ok
	}
	if n := balancer.clients.len(); n != maxClients || !has(0) || has(1) || !has(2) {
		t.Errorf("remembers %d clients; the first: %v, the second: %v, the third: %v", n, has(0), has(1), has(2))
	}
}
