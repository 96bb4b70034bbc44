package inspect_test

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestReplacesAllPorts: the agent's own virtual server for all ports is not a difference.
func TestReplacesAllPorts(t *testing.T) {
	shop := shopView()
	for i := range shop.Frontends {
		shop.Frontends[i].Server, shop.Frontends[i].Scheduler = shopAt.String(), "rr"
	}
	server := kernel.ObservedServer{}
	server.Key, server.Scheduler = shopAt, "rr"
	have := map[kernel.ServerKey]kernel.ObservedServer{shopAt: server}
	if found := inspect.Replaces(&view.View{Services: []view.Service{shop}}, have); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	server.Scheduler = "wrr"
	have[shopAt] = server
	if found := inspect.Replaces(&view.View{Services: []view.Service{shop}}, have); len(found) != 1 || len(found[0].Evidence) != 1 {
		t.Errorf("another scheduler: %+v", found)
	}
}
