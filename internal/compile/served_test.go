package compile_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// TestServed: a Service is served at the frontends that it wins. When a competing Service is deleted, the frontends lost to it are also served.
func TestServed(t *testing.T) {
	first, late := compiletest.Service("first", "10.96.0.1", "10.244.0.1"), compiletest.Service("late", "10.96.0.1", "10.244.0.2")
	late.Created = late.Created.Add(time.Hour)
	c := compile.NewCluster(compiletest.Config())
	c.Update(map[model.ServiceID]*model.Service{first.ID: first, late.ID: late}, want.NewTouched())
	if s := c.Served(first.ID); s.Service != first || len(s.Frontends) != 1 || s.Frontends[0].Key.String() != "-t 10.96.0.1:80" || s.Frontends[0].Port != "http" {
		t.Errorf("the first Service is served at %+v", s)
	}
	if s := c.Served(late.ID); s.Service != late || len(s.Frontends) != 0 {
		t.Errorf("the late Service is served at %+v", s)
	}
	c.Update(map[model.ServiceID]*model.Service{first.ID: nil}, want.NewTouched())
	if s := c.Served(first.ID); s.Service != nil || len(s.Frontends) != 0 {
		t.Errorf("the deleted Service is served at %+v", s)
	}
	if s := c.Served(late.ID); len(s.Frontends) != 1 {
		t.Errorf("without its competitor, the late Service is served at %+v", s)
	}
}

// TestLoopbackPorts: a loopback connection to a node port is forwarded to an address of the node that serves node ports, otherwise to the
// ClusterIP.
func TestLoopbackPorts(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	svc.Ports[0].NodePort = 30080
	for setting, expected := range map[string]string{
		"":                            "addresses [], ports [{tcp 30080 192.0.2.1:30080}]",
		"0.0.0.0/0":                   "addresses [], ports [{tcp 30080 192.0.2.1:30080}]",
		"192.0.2.0/24 127.0.0.0/8":    "addresses [127.0.0.1], ports [{tcp 30080 192.0.2.1:30080}]",
		"127.0.0.1/32":                "addresses [127.0.0.1], ports [{tcp 30080 10.96.0.1:80}]",
		"127.0.0.2/32 ::1/128":        "addresses [::1], ports [{tcp 30080 10.96.0.1:80}]",
		"198.51.100.0/24 127.0.0.0/9": "addresses [127.0.0.1], ports [{tcp 30080 10.96.0.1:80}]",
		"localhost":                   "addresses [127.0.0.1 ::1], ports [{tcp 30080 10.96.0.1:80}]",
		"localhost all":               "addresses [127.0.0.1 ::1], ports [{tcp 30080 192.0.2.1:30080}]",
	} {
		cfg := compiletest.Config()
		cfg.NodePorts = nodePorts(setting)
		c := compile.NewCluster(cfg)
		c.SetAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")}, want.NewTouched())
		c.Update(map[model.ServiceID]*model.Service{svc.ID: svc}, want.NewTouched())
		if got := fmt.Sprintf("addresses %v, ports %v", c.LoopbackAddresses(), c.LoopbackPorts(svc.ID)); got != expected {
			t.Errorf("%q: got %s, want %s", setting, got, expected)
		}
	}
	older := compiletest.Service("older", "10.96.0.2", "10.244.0.1")
	older.Ports[0].NodePort, older.Created = 30080, svc.Created.Add(-time.Hour)
	c := compile.NewCluster(compiletest.Config())
	c.SetAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")}, want.NewTouched())
	c.Update(map[model.ServiceID]*model.Service{svc.ID: svc, older.ID: older}, want.NewTouched())
	if ports := c.LoopbackPorts(svc.ID); len(ports) > 0 || len(c.LoopbackPorts(older.ID)) != 1 {
		t.Errorf("loopback ports %v although an older Service has the node port", ports)
	}
	c.Update(map[model.ServiceID]*model.Service{older.ID: nil}, want.NewTouched())
	if ports := c.LoopbackPorts(svc.ID); len(ports) != 1 {
		t.Errorf("loopback ports %v after the older Service was deleted", ports)
	}
	if ports := compile.NewCluster(compiletest.Config()).LoopbackPorts(svc.ID); ports != nil {
		t.Errorf("a Service that does not exist has loopback ports %v", ports)
	}
}

// TestNodePortAddresses: an address serves node ports if one keyword or range selects it, as in Kubernetes 1.37.
func TestNodePortAddresses(t *testing.T) {
	for setting, expected := range map[string]string{
		"":                                 "all",
		"all":                              "all",
		"all primary":                      "all",
		"all localhost":                    "all",
		"primary":                          "[192.0.2.1 fd00:2::1]",
		"localhost":                        "[]",
		"primary localhost":                "[192.0.2.1 fd00:2::1]",
		"primary 198.51.100.0/24":          "[192.0.2.1 198.51.100.1 fd00:2::1]",
		"primary 192.0.2.0/24 fd00:2::/64": "[192.0.2.1 192.0.2.2 fd00:2::1 fd00:2::9]",
		"localhost 198.51.100.0/24":        "[198.51.100.1]",
		"198.51.100.0/24":                  "[198.51.100.1 fd00:2::1 fd00:2::9]",
	} {
		cfg := compiletest.Config()
		cfg.NodePorts = nodePorts(setting)
		c, touched := compile.NewCluster(cfg), want.NewTouched()
		var all []netip.Addr
		for _, a := range []string{"192.0.2.1", "192.0.2.2", "198.51.100.1", "fd00:2::1", "fd00:2::9"} {
			all = append(all, netip.MustParseAddr(a))
		}
		c.SetAddresses(all, touched)
		c.UpdateNodes(map[string]*model.Node{cfg.NodeName: {Name: cfg.NodeName, Addresses: []netip.Addr{all[0], all[3]}}}, touched)
		got := "all"
		if addrs := c.NodePortAddresses(); addrs != nil {
			got = fmt.Sprint(addrs)
		}
		if got != expected {
			t.Errorf("%q: got %s, want %s", setting, got, expected)
		}
	}
}
