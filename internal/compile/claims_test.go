package compile_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// When the best claim is withdrawn, the frontend passes to the next best claim.
func TestClaimsPassToTheNextBest(t *testing.T) {
	older := compiletest.Service("older", "10.96.0.1", "10.244.0.1")
	younger := compiletest.Service("younger", "10.96.0.1", "10.244.0.2")
	younger.Created = older.Created.Add(1)
	c := scratch(services{older.ID: older, younger.ID: younger})
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	owner := func(want string, problemsOf ...model.ServiceID) {
		t.Helper()
		if got := c.Want().Servers[key].Owner.String(); got != want {
			t.Errorf("%s wins, want %s", got, want)
		}
		for _, id := range []model.ServiceID{older.ID, younger.ID} {
			if has := len(c.Problems(id)) > 0; has != slices.Contains(problemsOf, id) {
				t.Errorf("%s has problems %v", id, c.Problems(id))
			}
		}
	}
	owner("default/older:http", younger.ID)
	c.Update(services{older.ID: nil}, want.NewTouched())
	owner("default/younger:http")
	c.Update(services{older.ID: older}, want.NewTouched())
	owner("default/older:http", younger.ID)
	moved := compiletest.Service("older", "10.96.0.2", "10.244.0.1")
	c.Update(services{older.ID: moved}, want.NewTouched())
	owner("default/younger:http")
	recreated := compiletest.Service("older", "10.96.0.1", "10.244.0.1")
	recreated.Created = younger.Created.Add(1)
	c.Update(services{older.ID: recreated}, want.NewTouched())
	owner("default/younger:http", older.ID)
	held := compiletest.Service("younger", "10.96.0.1", "10.244.0.2") // the Service may no longer exist
	held.Created, held.Held = younger.Created, true
	c.Update(services{held.ID: held}, want.NewTouched())
	owner("default/older:http", younger.ID)
}

// Anyone can write any address into spec.externalIPs. An external IP never takes a frontend from the Service to which the API server
// allocated the address.
func TestExternalIPTakesNothing(t *testing.T) {
	squatter := compiletest.Service("squatter", "10.96.0.66", "10.244.0.66")
	squatter.ExternalIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1"), home.Addresses[0]}
	squatter.Ports = append(squatter.Ports, model.ServicePort{Name: "node", Protocol: inet.TCP, Port: 30080})
	squatter.Slices[0].Ports = append(squatter.Slices[0].Ports, model.EndpointPort{Name: "node", Protocol: inet.TCP, Port: 30080})
	younger := compiletest.Service("younger", "10.96.0.1", "10.244.0.2")
	younger.Created = squatter.Created.Add(1)
	younger.Ports[0].NodePort = 30080
	c := scratch(services{squatter.ID: squatter})
	c.Update(services{younger.ID: younger}, want.NewTouched())
	for _, at := range []string{"10.96.0.1:80", "192.0.2.1:30080"} {
		if s := c.Want().Servers[tcpAt(at)]; s == nil || s.Owner.String() != "default/younger:http" {
			t.Errorf("%s belongs to %v", at, s)
		}
	}
	if ps := c.Problems(squatter.ID); len(ps) != 2 || ps[0].Field != "spec.externalIPs[0]" {
		t.Errorf("problems: %v", ps)
	}
}
