package compile_test

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// The tests in this file demonstrate the attacks that docs/threat-model.md lists as not stopped. If a test fails,
// that page is out of date.

// A pod's hostPort at the node's address is a rule of the network plugin. No process listens on the port, so it appears free.
func TestHostPortsAreNotProtected(t *testing.T) {
	svc := at("any", 8080, home.Addresses[0].String(), "")
	c := scratch(nil)
	c.SetListeners(kernel.Listeners{}, touched())
	c.Update(services{svc.ID: svc}, touched())
	if !isServed(c, home.Addresses[0].String(), 8080) || len(c.Problems(svc.ID)) > 0 {
		t.Errorf("the Service is not served: %v", c.Problems(svc.ID))
	}
}

// The size of scheduler tables is bounded for each Service, but not for all Services together.
func TestTablesOfSeveralServicesAreNotBounded(t *testing.T) {
	all := services{}
	for i, name := range []string{"one", "two"} {
		svc := compiletest.Service(name, netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}).String(), "10.244.0.1")
		svc.Balancing.Scheduler = "mh"
		for j := range 1000 {
			svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, byte(i), byte(j >> 8), byte(j)}))
		}
		all[svc.ID] = svc
	}
	size := 0
	for _, s := range scratch(all).Want().Servers {
		size += model.SchedulerNamed(s.Scheduler).TableKiB
	}
	if size <= 32<<10 {
		t.Errorf("%d KiB", size)
	}
}

// Many small Services together can overfill a set, because the agent cannot reject a port or an address of any of them.
func TestManySmallServicesFillASet(t *testing.T) {
	const room = 100
	all := compiletest.Many(2*room, 1)
	c := scratch(nil)
	c.SetRoom(room)
	c.Update(all, touched())
	if c.Want().Fullest() <= room || len(c.Want().Servers) != len(all) {
		t.Errorf("got %d entries and %d virtual servers", c.Want().Fullest(), len(c.Want().Servers))
	}
}
