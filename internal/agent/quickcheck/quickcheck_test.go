package quickcheck

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// A new mismatch triggers an audit. A mismatch that an audit could not explain triggers no further audit.
func TestJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Checks
		now := time.Unix(0, 0)
		found := Mismatches{}
		explained := Mismatches{}
		judge := func() {
			now = now.Add(time.Second)
			due, wanted := c.Judge(now, found, [Parts]bool{}), false
			for s, value := range found {
				if explained[s] != value {
					wanted = true
				}
			}
			for s := range explained {
				if found[s] == "" {
					delete(explained, s)
				}
			}
			if wanted && !due {
				t.Fatalf("%v triggered no audit, although only %v are explained", found, explained)
			}
			if !wanted && due {
				t.Fatalf("%v triggered an audit, although %v are explained", found, explained)
			}
		}
		// unread is a check that did not read the sets.
		unread := func() {
			if c.Judge(now, Mismatches{}, [Parts]bool{Sets: true}) {
				t.Fatal("a check without sets triggered an audit")
			}
		}
		subject := func() Subject { return Subject{Sets, fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "set"))} }
		t.Repeat(map[string]func(*rapid.T){
			"another program": func(*rapid.T) {
				found[subject()] = fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "value"))
				judge()
			},
			"it undoes": func(*rapid.T) { delete(found, subject()); judge() },
			"an audit without findings": func(*rapid.T) {
				judge()
				c.AuditBegins()
				c.AuditEnds(false)
				if rapid.Bool().Draw(t, "not all checks read sets") {
					unread()
				}
				explained = clone(found)
				judge()
			},
			"an audit repairs": func(*rapid.T) {
				judge()
				c.AuditBegins()
				clear(found)
				c.AuditEnds(true)
				judge()
			},
			"nothing":           func(*rapid.T) { judge() },
			"sets are not read": func(*rapid.T) { unread() },
		})
	})
}

func clone(m Mismatches) Mismatches {
	c := Mismatches{}
	for s, value := range m {
		c[s] = value
	}
	return c
}

func TestNextTakesTurns(t *testing.T) {
	state := kernel.NewState()
	known := state.Servers
	for i := range 10*ServersAtATime + 3 {
		known[kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80), Protocol: inet.TCP}] = kernel.ObservedServer{}
	}
	var c Checks
	for range 3 {
		seen := map[kernel.ServerKey]bool{}
		for range 11 {
			for _, key := range c.Next(state).Servers {
				if seen[key] {
					t.Fatalf("%s has a second turn before all others have had one", key)
				}
				seen[key] = true
			}
		}
		if len(seen) != len(known) {
			t.Fatalf("%d of %d virtual servers had a turn", len(seen), len(known))
		}
	}
	for i := range few {
		known[kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 80), Protocol: inet.TCP}] = kernel.ObservedServer{}
	}
	if n := len(c.Next(state).Servers); n != 1 {
		t.Errorf("a check compares %d of %d virtual servers", n, len(known))
	}
	if n := testing.AllocsPerRun(9, func() { c.Next(state) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func TestUncounted(t *testing.T) {
	set := kernel.Set{Name: "S"}
	state := kernel.NewState()
	state.Sets["S"], state.Members["S"] = set, map[kernel.Element]struct{}{{}: {}}
	known := Known{State: state, IPv4Servers: 5}
	for n, want := range map[int]int{kernel.Uncounted: 0, 0: 2} {
		read := &kernel.Summary{IPv4Servers: n, Sets: map[string]kernel.SetSummary{"S": {Set: set, Members: n}}}
		if found := Compare(known, kernel.Sample{}, read, [Parts]bool{}); len(found) != want {
			t.Errorf("%d: %v", n, found)
		}
	}
}

// A check that does not count members notices a set that was emptied.
func TestEmptiedSet(t *testing.T) {
	state := kernel.NewState()
	for _, name := range []string{"A", "B"} {
		state.Sets[name] = kernel.Set{Name: name}
		state.Members[name] = map[kernel.Element]struct{}{{Addr: netip.MustParseAddr("10.0.0.1")}: {}, {Addr: netip.MustParseAddr("10.0.0.2")}: {}}
	}
	state.Members["C"] = nil
	var c Checks
	asked := c.Next(state)
	read := &kernel.Summary{Members: map[kernel.Member]struct{}{}}
	for _, m := range asked.Members {
		read.Members[m] = struct{}{}
	}
	if found := Compare(Known{State: state}, asked, read, [Parts]bool{}); len(read.Members) != 2 || len(found) > 0 {
		t.Fatalf("of %v, %v differ", asked.Members, found)
	}
	delete(read.Members, asked.Members[1])
	found := Compare(Known{State: state}, asked, read, [Parts]bool{})
	if _, noticed := found[Subject{Sets, asked.Members[1].Set}]; !noticed || len(found) != 1 {
		t.Errorf("without %v: %v", asked.Members[1], found)
	}
	if found := Compare(Known{State: state}, asked, read, [Parts]bool{Sets: true}); len(found) > 0 {
		t.Errorf("sets that the agent is writing: %v", found)
	}
}
