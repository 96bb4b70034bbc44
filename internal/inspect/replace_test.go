package inspect_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

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
	takeover := inspect.Takeover{View: &view.View{Services: []view.Service{shop}}, Kernel: &kernel.State{Servers: have}}
	if found := takeover.Findings(); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	server.Scheduler = "wrr"
	have[shopAt] = server
	if found := takeover.Findings(); len(found) != 1 || len(found[0].Evidence) != 1 {
		t.Errorf("another scheduler: %+v", found)
	}
}

// TestTakeoverOfTimeouts: a timeout that the agent sets changes at its start. One that it leaves alone returns to the kernel's default after a
// reboot, because only the other proxy has set it.
func TestTakeoverOfTimeouts(t *testing.T) {
	takeover := inspect.Takeover{View: &view.View{}, Kernel: &kernel.State{}}
	takeover.Timeouts.UDP = time.Minute
	if found := takeover.Findings(); len(found) > 0 {
		t.Errorf("unknown timeouts: %+v", found)
	}
	takeover.Kernel.Timeouts = kernel.Timeouts{TCP: time.Hour, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}
	var problems []string
	for _, f := range takeover.Findings() {
		problems = append(problems, f.Problem)
	}
	want := []string{
		"the IPVS timeout of idle TCP connections would change from 1h0m0s to 15m0s after the next reboot",
		"the IPVS timeout of idle UDP flows would change from 5m0s to 1m0s",
	}
	if !slices.Equal(problems, want) {
		t.Errorf("problems %q, want %q", problems, want)
	}
}

// TestTakeoverOfExcludedRanges: a Service that another proxy serves in an excluded range would keep its virtual server, but without updates.
func TestTakeoverOfExcludedRanges(t *testing.T) {
	shop := shopView()
	for i := range shop.Frontends {
		shop.Frontends[i].Server, shop.Frontends[i].Scheduler = shopAt.String(), "rr"
	}
	server := kernel.ObservedServer{}
	server.Key, server.Scheduler = shopAt, "rr"
	takeover := inspect.Takeover{
		View: &view.View{Services: []view.Service{shop}}, Kernel: &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{shopAt: server}},
		Excluded: []netip.Prefix{netip.PrefixFrom(shopAt.Addr.Addr(), 24).Masked()},
	}
	if found := takeover.Findings(); len(found) != 1 || !strings.Contains(found[0].Problem, "ipvs.excludeCIDRs") {
		t.Errorf("%+v", found)
	}
	takeover.Kernel.Servers = nil
	if found := takeover.Findings(); len(found) > 0 {
		t.Errorf("not served now: %+v", found)
	}
}
