package compile

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// A change of one slice visits only its endpoints, unless another endpoint may now be refused.
func TestOneChangedSliceIsVisited(t *testing.T) {
	const parts, each = 10, 100
	c := NewCluster(Config{Host: Host{NodeName: "node-a", Families: inet.Families}})
	http := model.EndpointPort{Name: "http", Protocol: inet.TCP, Port: 8080}
	slice := func(i int, ready bool) *model.EndpointSlice {
		s := &model.EndpointSlice{Name: fmt.Sprint("web-", i), Family: inet.IPv4, Ports: []model.EndpointPort{http}}
		for j := range each {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(j), byte(i)}), Ready: ready})
		}
		return s
	}
	web := &model.Service{
		ID: model.ServiceID{Namespace: "default", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Name: "http", Protocol: inet.TCP, Port: 80}},
	}
	for i := range parts {
		web.Slices = append(web.Slices, slice(i, true))
	}
	c.Update(map[model.ServiceID]*model.Service{web.ID: web}, want.NewTouched())
	before := c.services[web.ID].lists
	next := *web
	next.Slices = slices.Clone(web.Slices)
	next.Slices[3] = slice(3, false)
	visited := func() (checked int, reused bool) {
		l := newEndpointLists(&next, before, &c.node)
		for _, s := range l.unchecked(before) {
			checked += len(s.Endpoints)
		}
		_, reused = l.reuse(before.sorted[listKey{inet.IPv4, inet.TCP, "http"}], slicePortsOf(&next).of(web.Ports[0], inet.IPv4))
		return checked, reused
	}
	if checked, reused := visited(); checked != each || !reused {
		t.Errorf("%d endpoints are checked; the others are reused: %t", checked, reused)
	}
	c.node.virtual.replace(web.Slices[0].Endpoints[0].Addr, false, true)
	if checked, _ := visited(); checked != parts*each {
		t.Errorf("after an address became virtual, %d endpoints are checked", checked)
	}
}
