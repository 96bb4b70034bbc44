package iphelper

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"golang.org/x/sys/windows/registry"
)

// TestLoopbackInterface: both lists of addresses agree on the loopback interface.
func TestLoopbackInterface(t *testing.T) {
	l, err := loopback()
	if err != nil {
		t.Fatal(err)
	}
	present, err := l.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	adapters, err := readAdapters()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[netip.Addr]uint64{}
	for _, one := range adapters {
		for _, p := range one.addresses {
			if one.loopback {
				listed[p.Addr()] = 0
			}
		}
	}
	if _, ok := present[netip.MustParseAddr("127.0.0.1")]; !ok || list(present) != list(listed) {
		t.Errorf("the interface has %s, adapters %+v", list(present), adapters)
	}
}

// TestAddAndRemove needs the functions that change addresses, which Wine lacks.
func TestAddAndRemove(t *testing.T) {
	l, err := loopback()
	if err != nil {
		t.Fatal(err)
	}
	if create.Find() != nil {
		if _, err := l.Add(foreign); err == nil {
			t.Error("an address was added without the function that does it")
		}
		t.Skip("NOT RUN: this system cannot change addresses")
	}
	created, err := l.Add(foreign)
	if err != nil {
		t.Fatal(err)
	}
	present, err := l.Addresses()
	if err != nil || present[foreign] != created {
		t.Errorf("created at %d, listed as %d, %v", created, present[foreign], err)
	}
	if err := l.Remove(foreign); err != nil {
		t.Error(err)
	}
	if present, err = l.Addresses(); err != nil || present[foreign] != 0 {
		t.Errorf("after the removal: %d, %v", present[foreign], err)
	}
}

// TestRegistry: the record outlives the process that wrote it. An empty one is deleted.
func TestRegistry(t *testing.T) {
	const path = `SOFTWARE\kube-ipvs-test`
	open := func() *registryRecord {
		t.Helper()
		r, err := openRegistry(path)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	four, six := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")
	r := open()
	for a, created := range map[netip.Addr]uint64{four: 1<<60 + 1, six: adding} {
		if err := r.Write(a, created); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	r = open()
	if got, err := r.Read(); err != nil || !maps.Equal(got, map[netip.Addr]uint64{four: 1<<60 + 1, six: adding}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, a := range []netip.Addr{four, six, six} { // a missing one is no error
		if err := r.Forget(a); err != nil {
			t.Error(err)
		}
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	if key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE); err == nil {
		_ = key.Close()
		t.Error("the empty record still exists")
	}
}

// TestOneProcess: a second opening fails until the first is closed.
func TestOneProcess(t *testing.T) {
	first, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Open(); err == nil {
		_ = second.Close()
		t.Error("the addresses were opened twice")
	}
	if ours, err := first.Ours(); err != nil || len(ours) > 0 {
		t.Errorf("%v, %v", ours, err)
	}
	if node, err := first.Node(); err != nil || len(node.Network) == 0 && len(node.Addresses) > 0 {
		t.Errorf("%+v, %v", node, err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	again, err := Open()
	if err != nil {
		t.Fatal(fmt.Errorf("after the first was closed: %w", err))
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
