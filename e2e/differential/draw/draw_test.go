package draw

import (
	"fmt"
	"net/netip"
	"testing"
)

func testWorld() World {
	here, other := SpecialExternal()
	addrs := func(texts ...string) (list []netip.Addr) {
		for _, t := range texts {
			list = append(list, netip.MustParseAddr(t))
		}
		return list
	}
	w := World{
		Nodes: []Node{
			{Name: "node-1", Zone: "zone-a", Internal: addrs("192.168.50.11", "fd00:50::11"), External: here},
			{Name: "node-2", Zone: "zone-b", Internal: addrs("192.168.50.12", "fd00:50::12")},
			{Name: "node-3", Zone: "zone-b", Internal: addrs("192.168.50.13", "fd00:50::13"), External: other},
		},
		Ports:      []int32{8080, 8443},
		Interfaces: append(addrs("192.168.50.11", "fd00:50::11"), OwnClusterIP()),
		Clients:    addrs("198.51.100.11", "2001:db8:51::11"),
	}
	for i, node := range []string{"node-1", "node-1", "node-2", "node-2"} {
		n := byte(2 + i)
		w.Pods = append(w.Pods, Pod{Name: "web", Node: node, V4: netip.AddrFrom4([4]byte{10, 244, 1, n}), V6: netip.MustParseAddr("fd00:10:244:1::2")})
	}
	return w
}

func TestSameSeedSameObjects(t *testing.T) {
	draw := func(seed uint64) string {
		d := New(testWorld(), seed, 3)
		set := d.Batch(80)
		text := set.YAML()
		for range 3 {
			set, _ = d.Change(set)
			text += set.YAML()
		}
		return text
	}
	first := draw(1)
	if again := draw(1); first != again {
		t.Error("two draws from one seed differ")
	}
	if first == draw(2) {
		t.Error("another seed draws the same")
	}
}

func TestBatchHasEveryFeature(t *testing.T) {
	w := testWorld()
	for seed := range uint64(20) {
		set := New(w, seed, 1).Batch(70)
		if len(set.Services) > 85 {
			t.Errorf("seed %d: %d Services where 70 were asked for: features take too many", seed, len(set.Services))
		}
		if table, missing := FeatureTable(Count(w, set), 1); len(missing) > 0 {
			t.Fatalf("seed %d: missing %v\n%s", seed, missing, table)
		}
	}
}

func TestFeatureBelowMinimumIsNamed(t *testing.T) {
	w := testWorld()
	set := New(w, 1, 1).Batch(70)
	if _, missing := FeatureTable(Count(w, set), 1000); len(missing) != len(Features) {
		t.Errorf("%d of %d features named as missing", len(missing), len(Features))
	}
}

func TestNamesAndPortsAreUnique(t *testing.T) {
	d := New(testWorld(), 7, 2)
	set := d.Batch(120)
	for range 6 {
		names, ips := map[string]bool{}, map[string]bool{}
		ports := map[int32]string{}
		for _, svc := range set.Services {
			if names[svc.ID()] {
				t.Fatalf("two Services %s", svc.ID())
			}
			names[svc.ID()] = true
			for _, ip := range svc.Object.Spec.ClusterIPs {
				if ip != "None" && ips[ip] {
					t.Fatalf("two Services with the ClusterIP %s", ip)
				}
				ips[ip] = true
			}
			for _, p := range svc.Object.Spec.Ports {
				// One number for two protocols is allowed where the port is the same, too.
				owner := fmt.Sprintf("%s port %d", svc.ID(), p.Port)
				if other := ports[p.NodePort]; p.NodePort != 0 && other != "" && other != owner {
					t.Fatalf("%s and %s: node port %d", owner, other, p.NodePort)
				}
				ports[p.NodePort] = owner
			}
			if n := svc.Object.Spec.HealthCheckNodePort; n != 0 {
				if ports[n] != "" {
					t.Fatalf("%s and %s: node port %d", svc.ID(), ports[n], n)
				}
				ports[n] = svc.ID()
			}
		}
		set, _ = d.Change(set)
	}
}

func TestParseReadsWhatYAMLWrote(t *testing.T) {
	set := New(testWorld(), 5, 1).Batch(70)
	back, err := Parse([]byte(set.YAML()))
	if err != nil {
		t.Fatal(err)
	}
	if back.YAML() != set.YAML() {
		t.Error("it reads back as something else")
	}
}

func TestShrinkFindsTheCulprits(t *testing.T) {
	set := New(testWorld(), 5, 1).Batch(70)
	a, b := set.Services[13].ID(), set.Services[55].ID()
	tries := 0
	fails := func(s Set) bool {
		tries++
		left := map[string]bool{}
		for _, svc := range s.Services {
			left[svc.ID()] = true
		}
		return left[a] && left[b]
	}
	small := Shrink(set, nil, 100, fails)
	if len(small.Services) != 2 || !fails(small) {
		t.Errorf("%d Services left after %d tries", len(small.Services), tries)
	}
	tries = 0
	if small = Shrink(set, map[string]bool{a: true, b: true}, 3, fails); len(small.Services) != 2 || tries > 3 {
		t.Errorf("with the right suspects: %d Services left after %d tries", len(small.Services), tries)
	}
	tries = 0
	if Shrink(set, nil, 5, fails); tries > 5 {
		t.Errorf("%d tries instead of 5", tries)
	}
}
