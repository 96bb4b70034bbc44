package schedulers

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
)

func TestAffinity(t *testing.T) {
	w := onWorld(t)
	four := w.backends[8:12]

	t.Run("by subnet", func(t *testing.T) {
		s := w.up(t, "subnet", "rr", notes{"affinity-timeout": "10m", "affinity-prefix-ipv4": "24", "affinity-prefix-ipv6": "120"}, four...)
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			seen := counts{}
			for subnet := range 4 {
				var clients []int
				for i := range 10 {
					clients = append(clients, 256*(subnet+1)+i+1)
				}
				for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
					// Make one connection first: the kernel may create two affinity entries for simultaneous connections.
					w.ask(t, proto, f, s.at(f), clients[:1])
					one := count(w.ask(t, proto, f, s.at(f), clients)).one(t, "ten clients of one subnet")
					if proto == cluster.TCP {
						seen[one]++
					}
				}
			}
			seen.want(t, "four subnets", alike(1, four), 0.1)
		})
	})
	t.Run("the timeout", func(t *testing.T) { w.affinityTimeout(t, four) })
	t.Run("one packet", func(t *testing.T) { w.onePacket(t, four) })
}

// The timeout starts with the last new connection that used the affinity entry. If it expires while IPVS still
// tracks a connection of the client, the kernel adds a minute.
func (w *world) affinityTimeout(t *testing.T, four []*backend) {
	const timeout = 5 * time.Second
	s := w.up(t, "timeout", "rr", notes{"affinity-timeout": "5"}, four...)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		from := cluster.FromAddr(source(f, 77))
		one := w.client.Get(t, cluster.UDP, s.at(f), from, slowly).Server
		began := time.Now()
		for range 5 {
			if again := w.client.Get(t, cluster.UDP, s.at(f), from, slowly).Server; again != one {
				t.Errorf("%s: the client moved from %s to %s within the timeout", f, one, again)
			}
		}
		last := time.Now()
		cluster.Eventually(t, patience, "the client is forgotten", func() error { return w.forgotten(f, s, 77) })
		if took := time.Since(began); took < timeout {
			t.Errorf("%s: the client was forgotten after %s", f, took)
		}
		record(t, "affinity-timeout 5 s, UDP flows that expire after 2 s: the client is forgotten %.1f s after its last flow (%s)",
			time.Since(last).Seconds(), f)
		if again := w.client.Get(t, cluster.UDP, s.at(f), from, slowly).Server; again == one {
			t.Errorf("%s: after the timeout, round robin should reach another endpoint, but %s answered again", f, one)
		}
	})
}

type remembered struct{ client netip.Addr }

func (r remembered) Error() string { return r.client.String() + " is remembered" }

// forgotten reads the list several times, because the kernel may omit an entry while other connections begin and
// end.
func (w *world) forgotten(f cluster.Family, s service, client int) error {
	return w.node1.Do(func() error {
		for range 5 {
			all, err := ipvs.Connections()
			if err != nil {
				return err
			}
			for _, c := range all {
				if c.Client == netip.AddrPortFrom(source(f, client), 0) && c.Virtual.String() == s.at(f) {
					return remembered{c.Client.Addr()}
				}
			}
		}
		return nil
	})
}

// With one-packet, datagrams from one socket reach all endpoints. The client is a pod, because outside clients are
// masqueraded, and the kernel drops a masqueraded datagram that leaves through a different interface than the
// previous one.
func (w *world) onePacket(t *testing.T, four []*backend) {
	sinks := make([]*backend, len(four))
	for i, b := range four {
		sink := *b
		sink.port += 1000
		sink.udp = b.pod.Serve(t, cluster.UDP, sink.port, cluster.As(sink.name), cluster.Silent())
		sinks[i] = &sink
	}
	for _, set := range []string{"false", "true"} {
		s := w.up(t, "packets-"+set, "rr", notes{"one-packet": set}, sinks...)
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			got := send(t, w.inside.Host, s.at(f), sinks)
			if set == "false" {
				got.one(t, "without one-packet")
				return
			}
			got.want(t, "one packet", alike(1, sinks), 5)
			record(t, "one-packet, a pod's datagrams: %v arrive (%s)", got, f)
			record(t, "one-packet, an outside client's: %v arrive (%s)", send(t, w.client, s.at(f), sinks), f)
		})
	}
}

// send sends datagrams from one socket until forty have arrived.
func send(t *testing.T, from *cluster.Host, at string, sinks []*backend) counts {
	t.Helper()
	to := netip.MustParseAddrPort(at).Addr()
	before := received(sinks, to)
	sender := from.StartSender(t, at, 20*time.Millisecond)
	cluster.Eventually(t, patience, "forty datagrams arrive", func() error {
		if n := received(sinks, to).since(before).total(); n < 40 {
			return fmt.Errorf("only %d have arrived so far", n)
		}
		return nil
	})
	sender.Stop()
	return received(sinks, to).since(before)
}

// received counts only one family, because datagrams of the other family may still be in flight.
func received(all []*backend, family netip.Addr) counts {
	c := counts{}
	for _, b := range all {
		c[b.name] = 0
		for source, n := range b.udp.Sources() {
			if source.Unmap().Is4() == family.Is4() {
				c[b.name] += n
			}
		}
	}
	return c
}

func (c counts) since(before counts) counts {
	more := counts{}
	for name, n := range c {
		if n > before[name] {
			more[name] = n - before[name]
		}
	}
	return more
}
