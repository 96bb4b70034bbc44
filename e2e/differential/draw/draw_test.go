package draw

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
		Clients:    []Client{{"client-1", Outside, addrs("198.51.100.11", "2001:db8:51::11")}},
	}
	for i, node := range []string{"node-1", "node-1", "node-2", "node-2"} {
		n := byte(2 + i)
		w.Pods = append(w.Pods, Pod{Name: "web", Node: node, V4: netip.AddrFrom4([4]byte{10, 244, 1, n}), V6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%d", n))})
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
		t.Error("two seeds draw the same")
	}
}

// TestEntriesOfOneAddressAgree: if two entries are both terminating or both not terminating, Kubernetes does not
// specify which of them takes precedence, so they must be equal.
func TestEntriesOfOneAddressAgree(t *testing.T) {
	for seed := range uint64(20) {
		d := New(testWorld(), seed, 0)
		set := d.Batch(150)
		for range 3 {
			set, _ = d.Change(set)
		}
		for _, s := range set.Services {
			for _, p := range s.Object.Spec.Ports {
				first := map[string]Target{}
				for _, entry := range slices.Concat(s.listed("node-1", p, false), s.listed("node-1", p, true)) {
					key := fmt.Sprint(entry.Addr, entry.Terminating)
					if other, twice := first[key]; twice && (other.Ready != entry.Ready || other.Serving != entry.Serving) {
						t.Fatalf("seed %d, %s: %+v and %+v", seed, s.ID(), other, entry)
					}
					first[key] = entry
				}
			}
		}
	}
}

func TestBatchHasEveryFeature(t *testing.T) {
	w := testWorld()
	for seed := range uint64(20) {
		set := New(w, seed, 1).Batch(70)
		if len(set.Services) > 85 {
			t.Errorf("seed %d: %d Services instead of 70; the features need too many Services", seed, len(set.Services))
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
				// The API server lets two protocols share a node port only if they also share the port.
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
	set := New(testWorld(), 5, 2).Batch(70)
	if len(set.Strays) == 0 || set.NodePorts == nil {
		t.Fatal("the set must contain a stray slice and a setting")
	}
	back, err := Parse([]byte(set.YAML()))
	if err != nil {
		t.Fatal(err)
	}
	if back.YAML() != set.YAML() {
		t.Error("the parsed set differs from the original")
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
		t.Errorf("given the right suspects, Shrink left %d Services after %d tries", len(small.Services), tries)
	}
	tries = 0
	if Shrink(set, nil, 5, fails); tries > 5 {
		t.Errorf("%d tries instead of 5", tries)
	}
}

func TestOfTwoEntriesTheLivingOneCounts(t *testing.T) {
	w := testWorld()
	port := corev1.ServicePort{Name: "p", Protocol: corev1.ProtocolTCP}
	for _, order := range [][]string{{"false, serving: true, terminating: true", "false"}, {"false", "false, serving: true, terminating: true"}} {
		var text strings.Builder
		text.WriteString("kind: Service\nmetadata: {name: web}\n")
		for i, ready := range order {
			fmt.Fprintf(&text, "---\nkind: EndpointSlice\nmetadata: {name: web-%d, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n"+
				"ports: [{name: p, port: 80, protocol: TCP}]\nendpoints: [{addresses: [10.244.1.2], conditions: {ready: %s}}]\n", i, ready)
		}
		set, err := Parse([]byte(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		all := set.Services[0].Targets(w.Here().Name, port, false)
		if len(all) != 1 || all[0].Terminating || len(Usable(all)) != 0 {
			t.Errorf("%q: got %+v", order, all)
		}
	}
}

func TestChosenFollowsHints(t *testing.T) {
	here := Node{Name: "node-1", Zone: "zone-a"}
	target := func(n byte, ready bool, node, zone string) Target {
		t := Target{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, n}), 80), Ready: ready, Serving: true, Terminating: !ready}
		if node != "" {
			t.ForNodes = []string{node}
		}
		if zone != "" {
			t.ForZones = []string{zone}
		}
		return t
	}
	for _, try := range []struct {
		name string
		all  []Target
		want []byte
	}{
		{"none", nil, nil},
		{"no hints", []Target{target(2, true, "", ""), target(3, true, "", "")}, []byte{2, 3}},
		{"the zone's", []Target{target(2, true, "", "zone-a"), target(3, true, "", "zone-b")}, []byte{2}},
		{"the node's before the zone's", []Target{target(2, true, "node-2", "zone-a"), target(3, true, "node-1", "zone-b")}, []byte{3}},
		{"one has no hint", []Target{target(2, true, "", "zone-a"), target(3, true, "", "")}, []byte{2, 3}},
		{"no hint matches", []Target{target(2, true, "node-2", "zone-b"), target(3, true, "node-2", "zone-b")}, []byte{2, 3}},
		{"terminating endpoints without hints do not count", []Target{target(2, true, "", "zone-a"), target(3, true, "", "zone-b"), target(4, false, "", "")}, []byte{2}},
		{"hints do not choose among terminating endpoints", []Target{target(2, false, "", "zone-a"), target(3, false, "", "zone-b")}, []byte{2, 3}},
	} {
		var got []byte
		for _, c := range Chosen(try.all, here) {
			got = append(got, c.Addr.Addr().As4()[3])
		}
		if !slices.Equal(got, try.want) {
			t.Errorf("%s: got %v, want %v", try.name, got, try.want)
		}
	}
}

func TestNodePortAddresses(t *testing.T) {
	w := testWorld()
	for _, try := range []struct {
		setting []string
		want    string
	}{
		{nil, "[192.168.50.11 fd00:50::11 10.96.250.241]"},
		{[]string{"192.168.50.0/24"}, "[192.168.50.11 fd00:50::11]"},
		{[]string{"10.96.0.0/12", "fd00:51::/64"}, "[10.96.250.241]"},
		{[]string{"primary"}, "[192.168.50.11 fd00:50::11]"},
	} {
		if got := fmt.Sprint(Set{Nodes: w.Nodes, NodePorts: try.setting}.NodePortAddresses(w)); got != try.want {
			t.Errorf("%v: got %s, want %s", try.setting, got, try.want)
		}
	}
}

func TestTwoChangesHaveEveryKind(t *testing.T) {
	for seed := range uint64(10) {
		d, counts := New(testWorld(), seed, 1), map[string]int{}
		set := d.Batch(60)
		for range 2 {
			var changes map[string]int
			set, changes = d.Change(set)
			for kind, n := range changes {
				counts[kind] += n
			}
		}
		for _, kind := range Kinds {
			if counts[kind] == 0 {
				t.Errorf("seed %d: no change %q", seed, kind)
			}
		}
	}
}
