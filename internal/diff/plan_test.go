package diff_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var errTest = errors.New("test")

func config4() compile.Config {
	cfg := compiletest.Config()
	cfg.Families = []inet.Family{inet.IPv4}
	return cfg
}

// I7: the order of a complete plan.
func TestOrder(t *testing.T) {
	fake := newFake()
	c := compile.NewCluster(config4())
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	c.Update(map[model.ServiceID]*model.Service{web.ID: web}, touchedNone())
	p := converge(t, fake, diff.NewTarget(c.Want()), read())
	want := `# sysctls
sysctl -w net/ipv4/ip_forward=1
sysctl -w net/ipv4/vs/conntrack=1
sysctl -w net/ipv4/vs/expire_nodest_conn=1
sysctl -w net/ipv4/vs/expire_quiescent_template=1
# device
ip link add kube-ipvs0 type dummy
# sets
ipset create KIPVS-4-ALL-PORTS hash:ip family inet maxelem 1048576
ipset create KIPVS-4-ALLOWED hash:ip,port,net family inet maxelem 1048576
ipset create KIPVS-4-CLUSTER-IP hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-EXTERNAL hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-FIREWALLED hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-GUARDED hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-GUARDED-IP hash:ip family inet maxelem 1048576
ipset create KIPVS-4-HAIRPIN hash:ip,port,ip family inet maxelem 1048576
ipset create KIPVS-4-HEALTH hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-INSIDE-ONLY hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-LEDGER hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-LIMITED hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-MASQUERADED hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-NO-LOCAL hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-REFUSED hash:ip,port family inet maxelem 1048576
ipset create KIPVS-4-VIP hash:ip family inet maxelem 1048576
# ownership and hairpin entries
ipset add KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1
ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80
# rules
iptables-restore IPv4 chains
# seal of the ownership entries
ipset add KIPVS-4-LEDGER 127.0.0.1,tcp:1
# virtual servers
ipvsadm -A -t 10.96.0.1:80 -s rr
# destinations
ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1
# served ports
ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80
ipset add KIPVS-4-VIP 10.96.0.1
# addresses
ip addr add 10.96.0.1/32 dev kube-ipvs0
`
	if d := cmp.Diff(want, text(p)); d != "" {
		t.Errorf("create (-want +have):\n%s", d)
	}
	c.Update(map[model.ServiceID]*model.Service{web.ID: nil}, touchedNone())
	p = converge(t, fake, diff.NewTarget(c.Want()), read())
	want = `# addresses to release
ip addr del 10.96.0.1/32 dev kube-ipvs0
# served ports to close
ipset del KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80
# virtual servers to remove
ipvsadm -D -t 10.96.0.1:80
# guard entries to remove
ipset del KIPVS-4-VIP 10.96.0.1
# ownership and hairpin entries to remove
ipset del KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1
ipset del KIPVS-4-LEDGER 10.96.0.1,tcp:80
`
	if d := cmp.Diff(want, text(p)); d != "" {
		t.Errorf("delete (-want +have):\n%s", d)
	}
}

// guardedService is a load balancer with source ranges, a node port and the external traffic policy Local.
func guardedService(endpoint, node string) *model.Service {
	svc := compiletest.Service("web", "10.96.0.1", endpoint)
	svc.Slices[0].Endpoints[0].Node = node
	svc.ExternalLocal = true
	svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	return svc
}

var guardSteps = []struct {
	name string
	svc  *model.Service
	plan string
}{
	{"create", guardedService("10.244.1.1", "node-b"), `# ownership and hairpin entries
ipset add KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24
ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80
ipset add KIPVS-4-LEDGER 203.0.113.1,tcp:80
# guard entries
ipset add KIPVS-4-FIREWALLED 203.0.113.1,tcp:80
ipset add KIPVS-4-GUARDED 203.0.113.1,tcp:80
ipset add KIPVS-4-GUARDED-IP 203.0.113.1
ipset add KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80
# virtual servers
ipvsadm -A -t 10.96.0.1:80 -s rr
ipvsadm -A -t 203.0.113.1:80 -s rr
# destinations
ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 1
ipvsadm -a -t 203.0.113.1:80 -r 10.244.1.1:8080 -m -w 1
# served ports
ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80
ipset add KIPVS-4-EXTERNAL 203.0.113.1,tcp:80
ipset add KIPVS-4-VIP 10.96.0.1
ipset add KIPVS-4-VIP 203.0.113.1
# addresses
ip addr add 10.96.0.1/32 dev kube-ipvs0
ip addr add 203.0.113.1/32 dev kube-ipvs0
`},
	{"the endpoint moves to this node, and source ranges are removed", unlimited(guardedService("10.244.0.1", compiletest.Node)), `# ownership and hairpin entries
ipset add KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1
# destinations
ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1
ipvsadm -a -t 203.0.113.1:80 -r 10.244.0.1:8080 -m -w 1
# destinations to remove
ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.1:8080
ipvsadm -d -t 203.0.113.1:80 -r 10.244.1.1:8080
# guard entries to remove
ipset del KIPVS-4-FIREWALLED 203.0.113.1,tcp:80
ipset del KIPVS-4-GUARDED 203.0.113.1,tcp:80
ipset del KIPVS-4-GUARDED-IP 203.0.113.1
ipset del KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80
# ownership and hairpin entries to remove
ipset del KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24
`},
	{"the endpoint moves back", unlimited(guardedService("10.244.1.1", "node-b")), `# guard entries
ipset add KIPVS-4-GUARDED 203.0.113.1,tcp:80
ipset add KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80
# destinations
ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 1
ipvsadm -a -t 203.0.113.1:80 -r 10.244.1.1:8080 -m -w 1
# destinations to remove
ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:8080
ipvsadm -d -t 203.0.113.1:80 -r 10.244.0.1:8080
# ownership and hairpin entries to remove
ipset del KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1
`},
	{"delete", nil, `# addresses to release
ip addr del 10.96.0.1/32 dev kube-ipvs0
ip addr del 203.0.113.1/32 dev kube-ipvs0
# served ports to close
ipset del KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80
ipset del KIPVS-4-EXTERNAL 203.0.113.1,tcp:80
# virtual servers to remove
ipvsadm -D -t 10.96.0.1:80
ipvsadm -D -t 203.0.113.1:80
# guard entries to remove
ipset del KIPVS-4-GUARDED 203.0.113.1,tcp:80
ipset del KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80
ipset del KIPVS-4-VIP 10.96.0.1
ipset del KIPVS-4-VIP 203.0.113.1
# ownership and hairpin entries to remove
ipset del KIPVS-4-LEDGER 10.96.0.1,tcp:80
ipset del KIPVS-4-LEDGER 203.0.113.1,tcp:80
`},
}

func unlimited(svc *model.Service) *model.Service {
	svc.SourceRanges = nil
	return svc
}

// I7: the order of guard entries.
func TestOrderOfGuards(t *testing.T) {
	fake := newFake()
	c := compiletest.Cluster(config4(), nil, compiletest.At("192.0.2.1"))
	converge(t, fake, diff.NewTarget(c.Want()), read())
	for _, step := range guardSteps {
		c.Update(map[model.ServiceID]*model.Service{{Namespace: "default", Name: "web"}: step.svc}, touchedNone())
		if d := cmp.Diff(step.plan, text(converge(t, fake, diff.NewTarget(c.Want()), read()))); d != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, d)
		}
	}
}

// I7 for masquerading: an endpoint on another node never sees an external client's address, because its reply would bypass this node. A node
// port needs no set entry: creating the virtual server opens the port.
func TestOrderOfMasquerading(t *testing.T) {
	const (
		masquerade = "ipset add KIPVS-4-MASQUERADED 192.0.2.1,tcp:30080"
		reveal     = "ipset del KIPVS-4-MASQUERADED 192.0.2.1,tcp:30080"
		server     = "ipvsadm -A -t 192.0.2.1:30080 -s rr"
		serverDel  = "ipvsadm -D -t 192.0.2.1:30080"
		remote     = "ipvsadm -a -t 192.0.2.1:30080 -r 10.244.1.1:8080 -m -w 1"
		remoteDel  = "ipvsadm -d -t 192.0.2.1:30080 -r 10.244.1.1:8080"
	)
	cluster := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	cluster.Ports[0].NodePort = 30080
	cluster = compiletest.WithEndpoint(cluster, compiletest.Ready(netip.MustParseAddr("10.244.1.1")))
	local := *cluster
	local.ExternalLocal = true
	c := compiletest.Cluster(config4(), nil, compiletest.At("192.0.2.1"))
	fake := newFake()
	for _, step := range []struct {
		name string
		to   *model.Service
		want []string
	}{
		{"a new node port", cluster, []string{masquerade, server, remote}},
		{"policy Local", &local, []string{remoteDel, reveal}},
		{"policy Cluster", cluster, []string{masquerade, remote}},
		{"the Service is deleted", nil, []string{serverDel, reveal}},
	} {
		c.Update(map[model.ServiceID]*model.Service{cluster.ID: step.to}, touchedNone())
		ops := commands(converge(t, fake, diff.NewTarget(c.Want()), read()))
		ops = slices.DeleteFunc(ops, func(op string) bool { return !slices.Contains(step.want, op) })
		if d := cmp.Diff(step.want, ops); d != "" {
			t.Errorf("%s (-want +have):\n%s", step.name, d)
		}
	}
}

// One operation corrects all configured timeouts. Other timeouts keep their values.
func TestTimeouts(t *testing.T) {
	cfg := config4()
	cfg.Timeouts = kernel.Timeouts{TCP: time.Hour, UDP: 30 * time.Second}
	w := diff.NewTarget(compile.NewCluster(cfg).Want())
	fake := newFake()
	converge(t, fake, w, read())
	must(t, fake.SetTimeouts(kernel.Timeouts{TCPFin: time.Minute}))
	if p := plan(w, fake.State(), read()); p.Len() > 0 {
		t.Errorf("a timeout that is not configured was changed:\n%s", text(p))
	}
	must(t, fake.SetTimeouts(kernel.Timeouts{TCP: time.Minute}))
	p := converge(t, fake, w, read())
	if d := cmp.Diff([]string{"ipvsadm --set 3600 0 30"}, commands(p)); d != "" {
		t.Error(d)
	}
	if want := (kernel.Timeouts{TCP: time.Hour, TCPFin: time.Minute, UDP: 30 * time.Second}); fake.State().Timeouts != want {
		t.Errorf("timeouts are %v, want %v", fake.State().Timeouts, want)
	}
}

// A TCP endpoint is removed immediately if a fresh read shows no connections, and drains otherwise.
func TestDrain(t *testing.T) {
	yes, no := func(kernel.ServerKey) bool { return true }, func(kernel.ServerKey) bool { return false }
	expired := func(kernel.ServerKey, kernel.Destination) bool { return true }
	const gone, drain, stay = "ipvsadm -d %s -r 10.244.0.9:8080", "ipvsadm -e %s -r 10.244.0.9:8080 -m -w 0", ""
	for _, test := range []struct {
		name             string
		protocol         inet.Protocol
		weight           uint32
		active, inactive uint32
		opt              diff.Options
		want             string
	}{
		{name: "remembered counts do not count", weight: 1, want: drain},
		{name: "remembered counts, of another server", weight: 1, opt: diff.Options{Fresh: no}, want: drain},
		{name: "read, no connections", weight: 1, opt: diff.Options{Fresh: yes}, want: gone},
		{name: "read, active", weight: 1, active: 1, opt: diff.Options{Fresh: yes}, want: drain},
		{name: "read, inactive", weight: 1, inactive: 1, opt: diff.Options{Fresh: yes}, want: drain},
		{name: "draining", weight: 0, active: 1, opt: diff.Options{Fresh: yes}, want: stay},
		{name: "draining, remembered", weight: 0, want: stay},
		{name: "drained", weight: 0, opt: diff.Options{Fresh: yes}, want: gone},
		{name: "drained for too long", weight: 0, active: 1, opt: diff.Options{Fresh: yes, Expired: expired}, want: gone},
		{name: "UDP flows have no end", protocol: inet.UDP, weight: 1, active: 1, want: gone},
		{name: "the kernel does not see SCTP flows end", protocol: inet.SCTP, weight: 1, active: 1, want: gone},
	} {
		t.Run(test.name, func(t *testing.T) {
			web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
			if test.protocol != 0 {
				web.Ports[0].Protocol, web.Slices[0].Ports[0].Protocol = test.protocol, test.protocol
			}
			w := diff.NewTarget(clusterOf(web).Want())
			fake := newFake()
			converge(t, fake, w, read())
			key := w.Keys()[0]
			old := to("10.244.0.9:8080", test.weight)
			must(t, fake.AddDestination(kernel.ServerDestination{Server: key, Destination: old}))
			fake.SetConnections(key, old.Addr, test.active, test.inactive)
			expect := []string{}
			if test.want != "" {
				expect = []string{fmt.Sprintf(test.want, key)}
			}
			p := plan(w, fake.State(), test.opt)
			if d := cmp.Diff(expect, commands(p)); d != "" {
				t.Error(d)
			}
			if drains := diff.Drains(w, fake.State()); (len(drains) == 1) != (test.weight == 0) {
				t.Errorf("virtual servers with draining destinations: %v", drains)
			}
			if ending := test.want == gone && test.weight == 0; !p.Has(diff.IsRepair) != (ending || test.want == stay) {
				t.Errorf("IsRepair is wrong for:\n%s", text(p))
			}
		})
	}
}

// If an endpoint returns while it is draining, it regains its weight and keeps its connections.
func TestEndpointReturnsWhileDraining(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	w := diff.NewTarget(clusterOf(web).Want())
	fake := newFake()
	converge(t, fake, w, read())
	d := kernel.ServerDestination{Server: tcp("10.96.0.1:80"), Destination: to("10.244.0.1:8080", 0)}
	must(t, fake.DelDestination(d))
	must(t, fake.AddDestination(d))
	p := plan(w, fake.State(), read())
	if d := cmp.Diff([]string{"ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1"}, commands(p)); d != "" {
		t.Error(d)
	}
}

// A destination with the wrong forwarding method serves no client. The plan corrects the method in place.
func TestForwardingIsRepaired(t *testing.T) {
	w := diff.NewTarget(clusterOf(compiletest.Service("web", "10.96.0.1", "10.244.0.1")).Want())
	fake := newFake()
	converge(t, fake, w, read())
	d := kernel.ServerDestination{Server: tcp("10.96.0.1:80"), Destination: to("10.244.0.1:8080", 1)}
	must(t, fake.SetForwarding(d, kernel.ForwardRoute))
	if p := converge(t, fake, w, read()); p.Len() != 1 {
		t.Errorf("want a plan with one operation, got:\n%s", text(p))
	}
}

// TestAtZero: a plan names each destination that starts or stops draining without an operation, and no other.
func TestAtZero(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
	web.Balancing.Weights.DefaultSet = true
	w := diff.NewTarget(clusterOf(web).Want())
	fake := newFake()
	converge(t, fake, w, read())
	key := tcp("10.96.0.1:80")
	for i := range 2 { // no longer wanted
		must(t, fake.AddDestination(kernel.ServerDestination{Server: key, Destination: to(fmt.Sprintf("10.244.0.%d:8080", 3+i), 0)}))
	}
	drains := map[string]bool{"10.244.0.2:8080": true, "10.244.0.4:8080": true}
	p := plan(w, fake.State(), diff.Options{Draining: func(_ kernel.ServerKey, addr netip.AddrPort) bool { return drains[addr.String()] }})
	var named []string
	for _, d := range p.Without(func(kernel.Op) bool { return false }).AtZero {
		named = append(named, d.Addr.String())
	}
	if d := cmp.Diff([]string{"10.244.0.2:8080", "10.244.0.3:8080"}, named); d != "" || p.Len() > 0 {
		t.Errorf("%s\n%s", d, text(p))
	}
}
