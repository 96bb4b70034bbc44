package diff_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// If the rules are complete, the first half of the parts serves half of the new Services.
func TestPartsServeInOrder(t *testing.T) {
	w := diff.NewTarget(clusterWith(compiletest.Many(100, 5)).Want())
	added := plan(w, start(t, diff.NewTarget(clusterOf().Want())).State(), read())
	if n := len(added.Parts(added.Len(), w, nil)); n != 1 {
		t.Errorf("a plan that fits into one part has %d parts", n)
	}
	parts := added.Parts(added.Len()/10, w, nil)
	if len(parts) < 9 {
		t.Fatalf("a plan of %d operations has only %d parts", added.Len(), len(parts))
	}
	for i, part := range parts {
		if bound := slices.ContainsFunc(commands(part), func(c string) bool { return strings.HasPrefix(c, "ip addr add ") }); !bound {
			t.Errorf("part %d of %d binds no address, so it serves no client", i, len(parts))
		}
	}
}

// A plan changes one Service with many virtual servers and several small Services. Some of them share an address.
// The small changes come first.
func TestSmallChangesComeFirst(t *testing.T) {
	all := func(endpoint string) []*model.Service {
		large := compiletest.Service("large", "10.96.0.1", endpoint)
		for i := range 200 {
			large.ExternalIPs = append(large.ExternalIPs, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
		}
		services := []*model.Service{large}
		for i := range 10 {
			small := compiletest.Service(fmt.Sprint("small-", i), fmt.Sprint("10.96.1.", i), endpoint)
			small.ExternalIPs, small.Ports[0].Port = large.ExternalIPs[:1], uint16(8000+i)
			services = append(services, small)
		}
		return services
	}
	w := diff.NewTarget(clusterOf(all("10.244.0.2")...).Want())
	p := plan(w, start(t, diff.NewTarget(clusterOf(all("10.244.0.1")...).Want())).State(), read())
	parts := p.Parts(p.Len()/8, w, nil)
	firstLarge, lastSmall := len(parts), 0
	for i, part := range parts {
		for op := range part.All {
			d, ok := op.Object.(kernel.ServerDestination)
			switch {
			case !ok:
			case w.Server(d.Server).Owner.Service.Name == "large":
				firstLarge = min(firstLarge, i)
			default:
				lastSmall = i
			}
		}
	}
	if len(parts) < 8 || lastSmall > firstLarge {
		t.Errorf("of %d parts, part %d still changes a small Service, but part %d already changes the large Service", len(parts), lastSmall, firstLarge)
	}
}

// A plan that changes the rules or creates sets stays whole.
func TestOtherPlansStayWhole(t *testing.T) {
	many := diff.NewTarget(clusterWith(compiletest.Many(20, 2)).Want())
	if n := len(plan(many, newFake().State(), read()).Parts(1, many, nil)); n != 1 {
		t.Errorf("the plan for a bare node has %d parts, want 1", n)
	}
}
