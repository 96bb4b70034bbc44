package ipvs

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func TestReadForeignServers(t *testing.T) {
	b, _ := openBackend(t)
	for _, line := range []string{
		"-A -f 1 -s rr",
		"-a -f 1 -r 10.244.0.1:0 -m",
		"-A -f 2 -6 -s wlc -p 60 -M 64",
		"-A -t 10.96.0.1:80 -s wlc -p 360 -M 255.255.255.0",
		"-a -t 10.96.0.1:80 -r 10.244.0.2:80 -g -w 5 -x 100 -y 50",
		"-a -t 10.96.0.1:80 -r [2001:db8::1]:80 -i -w 7",
		"-A -u [fd00::a]:53 -s rr -o",
		"-A -t [::ffff:10.96.0.2]:80 -s rr",
	} {
		labtest.Run(t, "ipvsadm "+line)
	}
	attrs, err := encodeServer(server("10.96.0.3:80", 47))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.conn.Do(t.Context(), []nlbatch.Request{b.request(cmdNewService, attrs)})[0]; err != nil {
		t.Fatal("the kernel refuses a virtual server for GRE:", err)
	}
	tcp, udp, mapped := server("10.96.0.1:80", inet.TCP), server("[fd00::a]:53", inet.UDP), server("[::ffff:10.96.0.2]:80", inet.TCP)
	tcp.Scheduler, tcp.Flags, tcp.Timeout, tcp.MaskBits = "wlc", kernel.FlagPersistent, 360, 24
	udp.Flags = kernel.FlagOnePacket
	route, tunnel := procDest("10.244.0.2:80", 5), procDest("[2001:db8::1]:80", 7)
	route.Forwarding, tunnel.Forwarding = kernel.ForwardRoute, kernel.ForwardTunnel
	want := table{
		tcp.Key:    {Server: tcp, Destinations: []kernel.ObservedDestination{route, tunnel}},
		udp.Key:    {Server: udp},
		mapped.Key: {Server: mapped},
	}
	if diff := diffTables(want, readAll(t, b)); diff != "" {
		t.Error(diff)
	}
	if followed, err := b.Follow().Read(t.Context()); err != nil || diffTables(want, followed) != "" {
		t.Error(err, diffTables(want, followed))
	}
	absent := []kernel.ServerKey{server("10.96.0.9:80", inet.TCP).Key, server("[::ffff:10.96.0.9]:80", inet.TCP).Key}
	looked, err := b.Lookup(t.Context(), append(slices.Collect(maps.Keys(want)), absent...))
	if err != nil {
		t.Fatal(err)
	}
	route.Upper, route.Lower = 100, 50 // only a Lookup reads these
	want[tcp.Key] = kernel.ObservedServer{Server: tcp, Destinations: []kernel.ObservedDestination{route, tunnel}}
	if diff := diffTables(want, looked); diff != "" {
		t.Error(diff)
	}
}

// TestReload: a backend with an outdated number of the netlink family returns the same results as a new one.
func TestReload(t *testing.T) {
	b, _ := openBackend(t)
	s := server("10.96.0.1:80", inet.TCP)
	must(t, b, op(kernel.Create, s), op(kernel.Create, destOf(s, "10.244.0.1:80", 1)))
	const unused = 0x3fe
	for name, use := range map[string]func(*Backend) (any, error){
		"Lookup":     func(b *Backend) (any, error) { return b.Lookup(t.Context(), []kernel.ServerKey{s.Key}) },
		"Read":       func(b *Backend) (any, error) { return b.Read(t.Context()) },
		"Follower":   func(b *Backend) (any, error) { return b.Follow().Read(t.Context()) },
		"Timeouts":   func(b *Backend) (any, error) { return b.Timeouts(t.Context()) },
		"Schedulers": func(b *Backend) (any, error) { return b.Schedulers(t.Context(), []string{"rr", "nosuch"}), nil },
		"Traffic":    func(b *Backend) (any, error) { return b.Traffic(t.Context(), true) },
		"InspectOne": func(b *Backend) (any, error) {
			s, _, err := b.InspectOne(t.Context(), kernel.TableKey{Addr: s.Key.Addr, Protocol: s.Key.Protocol, Family: inet.IPv4})
			return s, err
		},
		"missing one": func(b *Backend) (any, error) {
			return b.Lookup(t.Context(), []kernel.ServerKey{server("10.96.0.2:80", inet.TCP).Key})
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := use(newBackend(t))
			if err != nil {
				t.Fatal(err)
			}
			outdated := newBackend(t)
			outdated.family = unused
			got, err := use(outdated)
			if diff := cmp.Diff(want, got, compareAddrs); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
	b.family = unused
	other := server("10.96.0.2:80", inet.TCP)
	for _, o := range []kernel.Op{op(kernel.Create, other), op(kernel.Create, destOf(s, "10.244.0.2:80", 1)), op(kernel.Ensure, kernel.Timeouts{})} {
		if err := apply(t, b, o.Verb, o.Object); !errors.Is(err, errReloaded) || kernel.Refused(o, err) {
			t.Errorf("first attempt: %v", err)
		}
		must(t, b, o)
		b.family = unused
	}
}
