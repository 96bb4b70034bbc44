package iphelper

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// system is the loopback interface of a machine.
type system interface {
	// Addresses returns the addresses, with the time at which each was created.
	Addresses() (map[netip.Addr]uint64, error)
	// Add adds an address, and returns the time at which it was created.
	Add(netip.Addr) (uint64, error)
	Remove(netip.Addr) error
}

// record lists the addresses that the agent has added, with the times at which they were created. It outlives the process.
type record interface {
	Read() (map[netip.Addr]uint64, error)
	Write(netip.Addr, uint64) error
	Forget(netip.Addr) error
}

// adding is the time in the record while an address is being added.
const adding = 0

var errUnclear = errors.New("another agent was killed while it added the address, which may therefore belong to another program; " +
	"it stays. To remove it, use netsh interface ipv4 (or ipv6) delete address")

// Holder keeps addresses of Services on the loopback interface.
type Holder struct {
	system
	record
	close func() error
}

// Close lets another process open the addresses. It removes none.
func (h *Holder) Close() error { return h.close() }

// Ours returns the addresses that an agent has added, sorted.
func (h *Holder) Ours() ([]netip.Addr, error) {
	present, recorded, err := h.read()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(recorded, func(a netip.Addr, created uint64) bool { return !isOurs(present, a, created) })
	return sorted(recorded), nil
}

// Keep adds the missing ones of the wanted addresses, and removes the others that an agent has added. It never removes an address that
// another program has added: not even if it is wanted, or if an agent added the same address earlier. failed contains the addresses that
// could not be added or removed.
func (h *Holder) Keep(wanted map[netip.Addr]struct{}) (failed map[netip.Addr]error, err error) {
	present, recorded, err := h.read()
	if err != nil {
		return nil, err
	}
	failed = map[netip.Addr]error{}
	for _, a := range sorted(recorded) {
		_, isWanted := wanted[a]
		if err := h.settle(a, recorded[a], present, isWanted); err != nil {
			failed[a] = err
		}
	}
	for _, a := range sorted(wanted) {
		if _, exists := present[a]; exists {
			continue
		}
		if err := h.add(a); err != nil {
			failed[a] = err
		}
	}
	return failed, nil
}

func (h *Holder) read() (present, recorded map[netip.Addr]uint64, err error) {
	if present, err = h.Addresses(); err != nil {
		return nil, nil, fmt.Errorf("list the addresses of the loopback interface: %w", err)
	}
	if recorded, err = h.Read(); err != nil {
		return nil, nil, fmt.Errorf("read the record of added addresses: %w", err)
	}
	return present, recorded, nil
}

// isOurs reports whether the address that the record contains is still the one that the agent added.
func isOurs(present map[netip.Addr]uint64, a netip.Addr, created uint64) bool {
	now, exists := present[a]
	return exists && created != adding && now == created
}

// settle removes a recorded address that is not wanted, or forgets it if it is not the agent's.
func (h *Holder) settle(a netip.Addr, created uint64, present map[netip.Addr]uint64, wanted bool) error {
	_, exists := present[a]
	switch ours := isOurs(present, a, created); {
	case ours && wanted:
		return nil
	case ours:
		if err := h.Remove(a); err != nil {
			return fmt.Errorf("remove %s: %w", a, err)
		}
	case exists && created == adding && wanted:
		return nil
	case exists && created == adding:
		return fmt.Errorf("%s: %w", a, errUnclear)
	}
	return h.forget(a)
}

// add records an address, adds it, and records when it was created. If the process is killed in between, the address is unclear.
func (h *Holder) add(a netip.Addr) error {
	if err := h.Write(a, adding); err != nil {
		return fmt.Errorf("record %s: %w", a, err)
	}
	created, err := h.Add(a)
	if err != nil {
		return errors.Join(fmt.Errorf("add %s: %w", a, err), h.forget(a))
	}
	if err := h.Write(a, created); err != nil {
		return errors.Join(fmt.Errorf("record %s: %w", a, err), h.Remove(a))
	}
	return nil
}

func (h *Holder) forget(a netip.Addr) error {
	if err := h.Forget(a); err != nil {
		return fmt.Errorf("remove %s from the record: %w", a, err)
	}
	return nil
}

func sorted[V any](addresses map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare)
}
