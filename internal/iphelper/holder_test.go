package iphelper

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// machine is a system and a record. The process that uses it can be killed before any of its writes.
type machine struct {
	present, recorded map[netip.Addr]uint64
	clock             uint64
	// writes counts the writes. The process is killed at the write with the number kill.
	writes, kill int
	refuse       map[netip.Addr]error
}

type killed struct{}

func newMachine() *machine {
	return &machine{present: map[netip.Addr]uint64{}, recorded: map[netip.Addr]uint64{}, clock: 1000, kill: -1}
}

func (m *machine) write() {
	if m.writes++; m.writes-1 == m.kill {
		panic(killed{})
	}
}

func (m *machine) Addresses() (map[netip.Addr]uint64, error) { return maps.Clone(m.present), nil }

func (m *machine) Add(a netip.Addr) (uint64, error) {
	m.write()
	if err := m.refuse[a]; err != nil {
		return 0, err
	}
	if _, exists := m.present[a]; exists {
		return 0, errors.New("the object already exists")
	}
	m.clock++
	m.present[a] = m.clock
	return m.clock, nil
}

func (m *machine) Remove(a netip.Addr) error {
	m.write()
	if _, exists := m.present[a]; !exists {
		return errors.New("element not found")
	}
	delete(m.present, a)
	return nil
}

// fakeRecord is the record of a machine.
type fakeRecord struct{ *machine }

func (r fakeRecord) Read() (map[netip.Addr]uint64, error) { return maps.Clone(r.recorded), nil }

func (r fakeRecord) Write(a netip.Addr, created uint64) error {
	r.write()
	r.recorded[a] = created
	return nil
}

func (r fakeRecord) Forget(a netip.Addr) error {
	r.write()
	delete(r.recorded, a)
	return nil
}

func (m *machine) holder() *Holder {
	return &Holder{m, fakeRecord{m}, func() error { return nil }}
}

// keep returns the addresses that failed, and whether the process was killed.
func (m *machine) keep(t *testing.T, wanted ...string) (failed string, dead bool) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			if _, dead = r.(killed); !dead {
				panic(r)
			}
		}
	}()
	all := map[netip.Addr]struct{}{}
	for _, a := range wanted {
		all[netip.MustParseAddr(a)] = struct{}{}
	}
	errs, err := m.holder().Keep(all)
	if err != nil {
		t.Fatal(err)
	}
	return list(errs), false
}

func list[V any](addresses map[netip.Addr]V) string {
	var all []string
	for _, a := range sorted(addresses) {
		all = append(all, a.String())
	}
	return strings.Join(all, " ")
}

func (m *machine) expect(t *testing.T, present, recorded string) {
	t.Helper()
	if p, r := list(m.present), list(m.recorded); p != present || r != recorded {
		t.Errorf("addresses %q, record %q; want %q and %q", p, r, present, recorded)
	}
}

var foreign = netip.MustParseAddr("10.96.0.99")

// TestKeep: wanted addresses are added, others of the agent removed. Another program's address stays, wanted or not.
func TestKeep(t *testing.T) {
	m := newMachine()
	m.present[foreign] = 7
	m.keep(t, "10.96.0.1", "fd00::1", "10.96.0.99")
	m.expect(t, "10.96.0.1 10.96.0.99 fd00::1", "10.96.0.1 fd00::1")
	m.keep(t, "10.96.0.1", "10.96.0.2")
	m.expect(t, "10.96.0.1 10.96.0.2 10.96.0.99", "10.96.0.1 10.96.0.2")
	before := m.writes
	m.keep(t, "10.96.0.1", "10.96.0.2")
	if m.writes != before {
		t.Errorf("%d writes, although nothing changed", m.writes-before)
	}
	delete(m.present, netip.MustParseAddr("10.96.0.1")) // by another program
	m.keep(t, "10.96.0.1", "10.96.0.2")
	m.expect(t, "10.96.0.1 10.96.0.2 10.96.0.99", "10.96.0.1 10.96.0.2")
	m.keep(t)
	m.expect(t, "10.96.0.99", "")
}

// TestRecreatedAddress: an address that the agent added, and that another program has since added again, is that program's. So are the
// addresses after a reboot, which removes those of the agent.
func TestRecreatedAddress(t *testing.T) {
	m := newMachine()
	m.keep(t, "10.96.0.1", "10.96.0.2")
	m.present = map[netip.Addr]uint64{netip.MustParseAddr("10.96.0.1"): m.clock + 1}
	if ours, err := m.holder().Ours(); err != nil || len(ours) > 0 {
		t.Errorf("addresses of an agent: %v, %v", ours, err)
	}
	m.keep(t)
	m.expect(t, "10.96.0.1", "")
}

// TestRefusedAddress: an address that cannot be added does not affect the others, and is not recorded.
func TestRefusedAddress(t *testing.T) {
	m := newMachine()
	m.refuse = map[netip.Addr]error{netip.MustParseAddr("10.96.0.1"): errors.New("access denied")}
	if failed, _ := m.keep(t, "10.96.0.1", "10.96.0.2"); failed != "10.96.0.1" {
		t.Errorf("failed: %s", failed)
	}
	m.expect(t, "10.96.0.2", "10.96.0.2")
}

// TestKilledAnywhere kills the agent at each write. The next one serves what is wanted, and removes every address of its own. Only an
// address whose creation was not recorded stays, and is reported. Another program's address always stays.
func TestKilledAnywhere(t *testing.T) {
	unclear := 0
	for kill := 0; ; kill++ {
		m := newMachine()
		m.present[foreign] = 7
		m.keep(t, "10.96.0.1", "10.96.0.2")
		m.writes, m.kill = 0, kill
		_, dead := m.keep(t, "10.96.0.2", "10.96.0.3")
		m.kill = -1
		if failed, _ := m.keep(t, "10.96.0.2", "10.96.0.3"); failed != "" || !slices.Equal(sorted(m.present),
			[]netip.Addr{netip.MustParseAddr("10.96.0.2"), netip.MustParseAddr("10.96.0.3"), foreign}) {
			t.Errorf("killed at write %d: addresses %s, failed %q", kill, list(m.present), failed)
		}
		failed, _ := m.keep(t)
		if stayed := strings.TrimSpace(strings.ReplaceAll(list(m.present), foreign.String(), "")); stayed != failed {
			t.Errorf("killed at write %d: %q stayed, %q was reported", kill, stayed, failed)
		}
		if failed != "" {
			unclear++
		}
		if _, exists := m.present[foreign]; !exists {
			t.Errorf("killed at write %d: another program's address was removed", kill)
		}
		if !dead {
			break
		}
	}
	if unclear != 1 {
		t.Errorf("%d writes make an address unclear, want 1", unclear)
	}
}

func TestUnclearAddressIsExplained(t *testing.T) {
	m := newMachine()
	a := netip.MustParseAddr("10.96.0.1")
	m.present[a], m.recorded[a] = 5, adding
	errs, err := m.holder().Keep(nil)
	if err != nil || !strings.Contains(fmt.Sprint(errs[a]), "netsh") {
		t.Errorf("%v, %v", errs, err)
	}
}
