package compile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// lacking compiles a Service with two endpoints and the given balancing settings for a kernel that lacks some schedulers.
func lacking(b model.Balancing, missing ...string) (want.Server, []model.Problem) {
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
	svc.Balancing = b
	svc.Slices[0].Endpoints[0].Pod = "default/web-0"
	cluster := compile.NewCluster(compiletest.Config())
	cluster.Update(map[model.ServiceID]*model.Service{svc.ID: svc}, want.NewTouched())
	lacks := map[string]bool{}
	for _, name := range missing {
		lacks[name] = false
	}
	cluster.SetSchedulers(lacks, want.NewTouched())
	for _, server := range cluster.Want().Servers {
		return *server, cluster.Problems(svc.ID)
	}
	panic("no server")
}

// If the kernel lacks a Service's scheduler, the virtual server uses the node's scheduler, with the flags and weights for that scheduler, and a
// Problem reports the replacement.
func TestMissingScheduler(t *testing.T) {
	differ := model.Weights{Pods: []model.NamedWeight{{Name: "default/web-0", Weight: 5}}}
	for _, c := range []struct {
		asked   model.Balancing
		missing []string
		want    string // expected scheduler and flags
		says    string // text in the Problem
	}{
		{model.Balancing{Scheduler: "sh", Flags: 3, FlagsSet: true}, nil, "sh 24", ""},
		{model.Balancing{Scheduler: "sh", Flags: 3, FlagsSet: true}, []string{"sh"}, "rr 0", "no such scheduler: rr is used until it has the module ip_vs_sh"},
		{model.Balancing{Scheduler: "mh", Weights: differ}, []string{"mh"}, "wrr 0", "no such scheduler: rr is used until it has the module ip_vs_mh"},
		{model.Balancing{Scheduler: "mh", Weights: differ}, []string{"mh", "wrr"}, "rr 0", "slow-start, have no effect"},
		{model.Balancing{Weights: differ}, []string{"wrr"}, "rr 0", "slow-start, have no effect"},
		{model.Balancing{Scheduler: "lc", Weights: differ}, []string{"mh"}, "wlc 0", ""},
		{model.Balancing{Scheduler: "lblc"}, nil, "lblc 0", "works, but"},
		{model.Balancing{Scheduler: "lblc"}, []string{"lblc"}, "rr 0", "no such scheduler"},
	} {
		server, problems := lacking(c.asked, c.missing...)
		if have := fmt.Sprint(server.Scheduler, " ", server.Flags); have != c.want {
			t.Errorf("%+v without %v: got %s, want %s", c.asked, c.missing, have, c.want)
		}
		var text strings.Builder
		for _, p := range problems {
			text.WriteString(p.String())
		}
		if !strings.Contains(text.String(), c.says) || c.says == "" && len(problems) > 0 {
			t.Errorf("%+v without %v: got problems %v, want one that contains %q", c.asked, c.missing, problems, c.says)
		}
	}
}

// If a Node's weight changes, the Services with endpoints on that node are recompiled. Setting the first weight in the cluster, or removing the last
// one, recompiles all Services, because it affects the scheduler of new virtual servers.
func TestNodeWeightAffectsItsServices(t *testing.T) {
	here, other := compiletest.Service("here", "10.96.0.1", "10.244.0.1"), compiletest.Service("other", "10.96.0.2", "10.244.0.2")
	here.Slices[0].Endpoints[0].Node, other.Slices[0].Endpoints[0].Node = "node-b", "node-c"
	cluster := compile.NewCluster(compiletest.Config())
	cluster.Update(map[model.ServiceID]*model.Service{here.ID: here, other.ID: other}, want.NewTouched())
	weights := func(node *model.Node) (again []model.ServiceID, weight uint32) {
		again = cluster.UpdateNodes(map[string]*model.Node{"node-b": node}, want.NewTouched())
		for key, server := range cluster.Want().Servers {
			if key.Addr.Addr() == here.ClusterIPs[0] {
				return again, server.Destinations[0].Weight
			}
		}
		return again, 0
	}
	for _, c := range []struct {
		node   *model.Node
		again  int
		weight uint32
	}{
		{&model.Node{Name: "node-b", Weight: 4, WeightSet: true}, 2, 4}, // the first weight of the cluster
		{&model.Node{Name: "node-b", Weight: 4, WeightSet: true, Zone: "z"}, 0, 4},
		{&model.Node{Name: "node-b", Weight: 5, WeightSet: true}, 1, 5},
		{&model.Node{Name: "node-b", Weight: 0, WeightSet: true}, 2, 0}, // the last one
		{&model.Node{Name: "node-b"}, 1, 1},
		{&model.Node{Name: "node-b", Weight: model.MaxWeight, WeightSet: true}, 2, model.MaxWeight},
		{nil, 2, 1},
	} {
		again, weight := weights(c.node)
		if len(again) != c.again || weight != c.weight {
			t.Errorf("%+v: compiled %v, got weight %d", c.node, again, weight)
		}
	}
}

// A virtual server whose weights may differ later starts with a scheduler that uses weights. While the weights are equal, either scheduler works. An
// existing virtual server therefore keeps its scheduler, because the kernel refuses connections during a change.
func TestSchedulerIsChangedOnlyForDifferentWeights(t *testing.T) {
	pod := func(name string, weight uint32) model.Balancing {
		return model.Balancing{Weights: model.Weights{Pods: []model.NamedWeight{{Name: name, Weight: weight}}}}
	}
	lc := pod("default/canary", 5)
	lc.Scheduler = "lc"
	sh := pod("default/canary", 5)
	sh.Scheduler = "sh"
	for name, c := range map[string]struct {
		asked        model.Balancing
		begin, alike string
	}{
		"no weights":                 {model.Balancing{}, "rr", "wrr"},
		"one weight for all":         {model.Balancing{Weights: model.Weights{Default: 7, DefaultSet: true}}, "rr", "wrr"},
		"a pod that drains":          {pod("default/web-0", 0), "rr", "wrr"},
		"different weights":          {pod("default/web-0", 5), "wrr", ""},
		"slow start":                 {model.Balancing{SlowStart: 1}, "wrr", ""},
		"the weight of a future pod": {pod("default/canary", 5), "wrr", "rr"},
		"the same with lc":           {lc, "wlc", "lc"},
		"a scheduler with weights":   {sh, "sh", ""},
		"wrr by annotation":          {model.Balancing{Scheduler: "wrr"}, "wrr", ""},
	} {
		if server, _ := lacking(c.asked); server.Scheduler != c.begin || server.Alike != c.alike {
			t.Errorf("%s: got scheduler %q or %q, want %q or %q", name, server.Scheduler, server.Alike, c.begin, c.alike)
		}
	}
	if server, _ := lacking(lc, "wlc"); server.Scheduler != "lc" || server.Alike != "" {
		t.Errorf("got scheduler %q or %q without wlc", server.Scheduler, server.Alike)
	}
}

func TestWeightsStayWithinTheKernelsLimit(t *testing.T) {
	server, _ := lacking(model.Balancing{Weights: model.Weights{Default: model.MaxWeight, DefaultSet: true}, SlowStart: 1})
	for _, d := range server.Destinations {
		if d.Weight != model.MaxWeight {
			t.Errorf("%s", kernel.ServerDestination{Server: server.Key, Destination: d})
		}
	}
}

// With wrr and a connection limit, the kernel finds an endpoint in no more steps than the largest Service has endpoints, regardless of the weights
// and of which endpoints are at their limit. Dividing the weights preserves their order, and the divisor is no larger than necessary.
func TestSearchesOfTheKernelAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		svc := compiletest.Service("web", "10.96.0.1")
		svc.Balancing.MaxConnections = 1
		svc.Balancing.SlowStart = time.Duration(rapid.IntRange(0, 1).Draw(t, "slow start")) * time.Minute
		weight := rapid.Custom(func(t *rapid.T) uint32 {
			return rapid.Uint32Range(0, model.MaxWeight>>rapid.IntRange(0, 30).Draw(t, "halved")).Draw(t, "weight")
		})
		asked := map[netip.Addr]uint32{}
		for i := range rapid.IntRange(1, 200).Draw(t, "endpoints") {
			e, name := compiletest.Ready(compiletest.Pod(i)), fmt.Sprintf("default/web-%03d", i)
			e.Pod, asked[e.Addr] = name, weight.Draw(t, name)
			svc.Slices[0].Endpoints = append(svc.Slices[0].Endpoints, e)
			svc.Balancing.Weights.Pods = append(svc.Balancing.Weights.Pods, model.NamedWeight{Name: name, Weight: asked[e.Addr]})
		}
		c := scratch(services{svc.ID: svc})
		_, most, _, _ := c.SmallBounds(1)
		ds := c.Want().Servers[tcpAt("10.96.0.1:80")].Destinations
		full := 1 << rapid.IntRange(0, 8).Draw(t, "endpoints at their limit")
		largest, steps := wrrSteps(ds, full, svc.Balancing.SlowStart > 0)
		if steps > most {
			t.Fatalf("%v: the search takes %d steps", ds, steps)
		}
		for i, d := range ds {
			if w := asked[d.Addr.Addr()]; (d.Weight > 0) != (w > 0) || i > 0 && (w < asked[ds[i-1].Addr.Addr()]) && d.Weight > ds[i-1].Weight {
				t.Fatalf("%s: got weight %d for a requested weight of %d", d.Addr, d.Weight, w)
			}
		}
		if divided := len(c.Problems(svc.ID)) > 0; divided && 4*int(largest)*len(ds) < most {
			t.Fatalf("%v: the largest weight, %d, is too small", ds, largest)
		}
	})
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
	svc.Slices[0].Endpoints[0].Pod = "default/web-0"
	svc.Balancing.MaxConnections, svc.Balancing.Weights.Pods = 100, []model.NamedWeight{{Name: "default/web-0", Weight: 1000}}
	c := scratch(services{svc.ID: svc})
	if ds := c.Want().Servers[tcpAt("10.96.0.1:80")].Destinations; ds[0].Weight != 1000 || ds[1].Weight != 1 || len(c.Problems(svc.ID)) > 0 {
		t.Errorf("weights 1000 and 1 became %v: %v", ds, c.Problems(svc.ID))
	}
}

// With nftables, a frontend has as many slots as its weights need. For any number of frontends and any weights, a Service's slots
// never exceed its maximum number of destinations.
func TestSlotsOfAServiceAreBounded(t *testing.T) {
	cfg := compiletest.Config()
	cfg.Mode = kernel.NFTablesOnly
	for _, addresses := range []int{1, 100, 30_000} {
		svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
		svc.Slices[0].Endpoints[0].Pod = "default/web-0"
		svc.Balancing.Weights = model.Weights{Default: 65_535, DefaultSet: true, Pods: []model.NamedWeight{{Name: "default/web-0", Weight: 65_534}}}
		for i := range addresses - 1 {
			svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
		}
		c := compiletest.Cluster(cfg, services{svc.ID: svc}, home)
		_, _, _, most := c.SmallBounds(1)
		slots := 0
		for _, s := range c.Want().Servers {
			for _, d := range s.Destinations {
				slots += int(d.Weight)
			}
		}
		if len(c.Want().Servers) != addresses || slots > most || 8*slots < most && addresses > 4 {
			t.Errorf("%d virtual servers have %d slots, want at most %d", len(c.Want().Servers), slots, most)
		}
	}
}

// wrrSteps returns the largest weight, and the number of destinations that the kernel's wrr examines to find an available one if the destinations
// with the largest weights are at their limit (net/netfilter/ipvs/ip_vs_wrr.c).
func wrrSteps(ds []kernel.Destination, full int, rising bool) (largest uint32, steps int) {
	var weights []uint32
	divisor := uint32(0)
	for _, d := range ds {
		weights = append(weights, d.Weight)
		for a := d.Weight; a > 0; {
			divisor, a = a, divisor%a
		}
	}
	slices.Sort(weights)
	slices.Reverse(weights)
	switch largest = weights[0]; {
	case largest == 0:
		return 0, 0
	case rising:
		divisor = 1
	}
	next := uint32(0)
	if full < len(weights) {
		next = weights[full]
	}
	return largest, int((largest-next)/divisor) * len(ds)
}
