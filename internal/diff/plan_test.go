package diff_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

var errTest = errors.New("test")

func config4() compile.Config {
	cfg := compiletest.Config()
	cfg.Families = []inet.Family{inet.IPv4}
	return cfg
}

// I7 in full, once, as a support engineer would read it.
func TestOrder(t *testing.T) {
	fake := newFake()
	c := compile.NewCluster(config4())
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	c.Update(map[model.ServiceID]*model.Service{web.ID: web}, touchedNone())
	p := converge(t, fake, c.Want(), read())
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
	p = converge(t, fake, c.Want(), read())
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

// guardedService is a load balancer with source ranges, a node port and the external traffic policy Local. Its endpoint is on another
// node, or here.
func guardedService(endpoint, node string) *model.Service {
	svc := compiletest.Service("web", "10.96.0.1", endpoint)
	svc.Slices[0].Endpoints[0].Node = node
	svc.ExternalLocal = true
	svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	return svc
}

// I7 for guard entries.
func TestOrderOfGuards(t *testing.T) {
	fake := newFake()
	c := compiletest.Cluster(config4(), nil, compiletest.At("192.0.2.1"))
	converge(t, fake, c.Want(), read())
	step := func(name, want string, svc *model.Service) {
		t.Helper()
		c.Update(map[model.ServiceID]*model.Service{{Namespace: "default", Name: "web"}: svc}, touchedNone())
		if d := cmp.Diff(want, text(converge(t, fake, c.Want(), read()))); d != "" {
			t.Errorf("%s (-want +have):\n%s", name, d)
		}
	}
	step("create", `# ownership and hairpin entries
ipset add KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24
ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80
ipset add KIPVS-4-LEDGER 203.0.113.1,tcp:80
# guard entries
ipset add KIPVS-4-FIREWALLED 203.0.113.1,tcp:80
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
`, guardedService("10.244.1.1", "node-b"))
	open := guardedService("10.244.0.1", compiletest.Node)
	open.SourceRanges = nil
	step("the endpoint comes here, and everybody may use it", `# ownership and hairpin entries
ipset add KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1
# destinations
ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1
ipvsadm -a -t 203.0.113.1:80 -r 10.244.0.1:8080 -m -w 1
# destinations to remove
ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.1:8080
ipvsadm -d -t 203.0.113.1:80 -r 10.244.1.1:8080
# guard entries to remove
ipset del KIPVS-4-FIREWALLED 203.0.113.1,tcp:80
ipset del KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80
# ownership and hairpin entries to remove
ipset del KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24
`, open)
	moved := guardedService("10.244.1.1", "node-b")
	moved.SourceRanges = nil
	step("and goes again", `# guard entries
ipset add KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80
# destinations
ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.1:8080 -m -w 1
ipvsadm -a -t 203.0.113.1:80 -r 10.244.1.1:8080 -m -w 1
# destinations to remove
ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.1:8080
ipvsadm -d -t 203.0.113.1:80 -r 10.244.0.1:8080
# ownership and hairpin entries to remove
ipset del KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1
`, moved)
	step("delete", `# addresses to release
ip addr del 10.96.0.1/32 dev kube-ipvs0
ip addr del 203.0.113.1/32 dev kube-ipvs0
# served ports to close
ipset del KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80
ipset del KIPVS-4-EXTERNAL 203.0.113.1,tcp:80
# virtual servers to remove
ipvsadm -D -t 10.96.0.1:80
ipvsadm -D -t 203.0.113.1:80
# guard entries to remove
ipset del KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80
ipset del KIPVS-4-VIP 10.96.0.1
ipset del KIPVS-4-VIP 203.0.113.1
# ownership and hairpin entries to remove
ipset del KIPVS-4-LEDGER 10.96.0.1,tcp:80
ipset del KIPVS-4-LEDGER 203.0.113.1,tcp:80
`, nil)
}

// I8 for guards: each operation on them, and what is skipped if it fails.
func TestFailuresOfGuards(t *testing.T) {
	const (
		allow    = "ipset add KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24"
		forget   = "ipset del KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24"
		guard    = "ipset add KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80"
		guardDel = "ipset del KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80"
		firewall = "ipset add KIPVS-4-FIREWALLED 203.0.113.1,tcp:80"
		wallDel  = "ipset del KIPVS-4-FIREWALLED 203.0.113.1,tcp:80"
		add      = "ipvsadm -A -t 203.0.113.1:80 -s rr"
		dest     = "ipvsadm -a -t 203.0.113.1:80 -r 10.244.1.1:8080 -m -w 1"
		here     = "ipvsadm -a -t 203.0.113.1:80 -r 10.244.0.1:8080 -m -w 1"
		destDel  = "ipvsadm -d -t 203.0.113.1:80 -r 10.244.1.1:8080"
		open     = "ipset add KIPVS-4-EXTERNAL 203.0.113.1,tcp:80"
		bind     = "ip addr add 203.0.113.1/32 dev kube-ipvs0"
		release  = "ip addr del 203.0.113.1/32 dev kube-ipvs0"
		del      = "ipvsadm -D -t 203.0.113.1:80"
		unlist   = "ipset del KIPVS-4-VIP 203.0.113.1"
		unclaim  = "ipset del KIPVS-4-LEDGER 203.0.113.1,tcp:80"
		closed   = "ipset del KIPVS-4-EXTERNAL 203.0.113.1,tcp:80"
	)
	remote, local := guardedService("10.244.1.1", "node-b"), guardedService("10.244.0.1", compiletest.Node)
	local.SourceRanges = nil
	for _, test := range []struct {
		from, to *model.Service
		fails    string
		skips    []string
	}{
		{nil, remote, allow, nil}, // its clients wait; nobody gets in who is not allowed
		{nil, remote, guard, []string{add, dest, open, bind}},
		{nil, remote, firewall, []string{add, dest, open, bind}},
		{local, remote, guard, []string{dest}},
		{remote, local, here, []string{guardDel, wallDel, forget}},
		{remote, local, destDel, []string{guardDel, wallDel, forget}},
		{remote, local, wallDel, []string{forget}},
		{remote, nil, release, []string{unlist, del, guardDel, wallDel, forget, unclaim}},
		{remote, nil, closed, []string{del, guardDel, wallDel, forget, unclaim}},
		{remote, nil, del, []string{guardDel, wallDel, forget, unclaim}},
	} {
		t.Run(test.fails, func(t *testing.T) {
			c := compiletest.Cluster(config4(), nil, compiletest.At())
			fake := newFake()
			id := model.ServiceID{Namespace: "default", Name: "web"}
			c.Update(map[model.ServiceID]*model.Service{id: test.from}, touchedNone())
			converge(t, fake, c.Want(), read())
			c.Update(map[model.ServiceID]*model.Service{id: test.to}, touchedNone())
			have := fake.State()
			failures := diff.NewFailures(c.Want(), have)
			skipped, failed := []string{}, false
			for _, op := range plan(c.Want(), have, read()).Ops() {
				err := failures.Blocks(op)
				switch {
				case op.String() == test.fails:
					failures.Add(op, errTest)
					failed = true
				case err != nil:
					failures.Add(op, err)
					skipped = append(skipped, op.String())
				default:
					have.Advance(op)
				}
			}
			if !failed {
				t.Fatalf("%q is not in the plan", test.fails)
			}
			slices.Sort(skipped)
			if d := cmp.Diff(slices.Sorted(slices.Values(test.skips)), skipped, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("-want +have:\n%s", d)
			}
		})
	}
}

// I7 for masquerading: an endpoint on another node never sees the address of a client outside, because its reply would not return through
// this node. The virtual server alone opens a node port.
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
		{"the Service is gone", nil, []string{serverDel, reveal}},
	} {
		c.Update(map[model.ServiceID]*model.Service{cluster.ID: step.to}, touchedNone())
		ops := commands(converge(t, fake, c.Want(), read()))
		ops = slices.DeleteFunc(ops, func(op string) bool { return !slices.Contains(step.want, op) })
		if d := cmp.Diff(step.want, ops); d != "" {
			t.Errorf("%s (-want +have):\n%s", step.name, d)
		}
	}
}

// Configured timeouts are corrected in one operation. The others keep their values.
func TestTimeouts(t *testing.T) {
	cfg := config4()
	cfg.Timeouts = kernel.Timeouts{TCP: time.Hour, UDP: 30 * time.Second}
	w := compile.NewCluster(cfg).Want()
	fake := newFake()
	converge(t, fake, w, read())
	must(t, fake.SetTimeouts(kernel.Timeouts{TCPFin: time.Minute}))
	if p := plan(w, fake.State(), read()); p.Len() > 0 {
		t.Errorf("a timeout that is not configured:\n%s", text(p))
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

// When a TCP endpoint is removed, and how.
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
		{name: "remembered counts justify nothing", weight: 1, want: drain},
		{name: "remembered counts, of another server", weight: 1, opt: diff.Options{Fresh: no}, want: drain},
		{name: "read, no connections", weight: 1, opt: diff.Options{Fresh: yes}, want: gone},
		{name: "read, active", weight: 1, active: 1, opt: diff.Options{Fresh: yes}, want: drain},
		{name: "read, inactive", weight: 1, inactive: 1, opt: diff.Options{Fresh: yes}, want: drain},
		{name: "draining", weight: 0, active: 1, opt: diff.Options{Fresh: yes}, want: stay},
		{name: "draining, remembered", weight: 0, want: stay},
		{name: "drained", weight: 0, opt: diff.Options{Fresh: yes}, want: gone},
		{name: "for too long", weight: 0, active: 1, opt: diff.Options{Fresh: yes, Expired: expired}, want: gone},
		{name: "UDP has no end to wait for", protocol: inet.UDP, weight: 1, active: 1, want: gone},
		{name: "SCTP has no end that the kernel sees", protocol: inet.SCTP, weight: 1, active: 1, want: gone},
	} {
		t.Run(test.name, func(t *testing.T) {
			web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
			if test.protocol != 0 {
				web.Ports[0].Protocol, web.Slices[0].Ports[0].Protocol = test.protocol, test.protocol
			}
			w := clusterOf(web).Want()
			fake := newFake()
			converge(t, fake, w, read())
			key := diff.AllKeys(w)[0]
			old := to("10.244.0.9:8080", test.weight)
			must(t, fake.AddDestination(kernel.ServerDestination{Server: key, Destination: old}))
			fake.SetConnections(key, old.Addr, test.active, test.inactive)
			expect := []string{}
			if test.want != "" {
				expect = []string{fmt.Sprintf(test.want, key)}
			}
			p := diff.Full(w, fake.State(), test.opt)
			if d := cmp.Diff(expect, commands(p)); d != "" {
				t.Error(d)
			}
			if drains := diff.Drains(w, fake.State()); (len(drains) == 1) != (test.weight == 0) {
				t.Errorf("drains: %v", drains)
			}
			if ending := test.want == gone && test.weight == 0; (diff.Repairs(p) == 0) != (ending || test.want == stay) {
				t.Errorf("%d repairs in\n%s", diff.Repairs(p), text(p))
			}
		})
	}
}

// An endpoint that comes back while it drains gets its weight back, in place: its connections stay.
func TestWantedAgain(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	w := clusterOf(web).Want()
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

// A destination that does not masquerade serves no client: it is corrected in place.
func TestForwardingIsRepaired(t *testing.T) {
	w := clusterOf(compiletest.Service("web", "10.96.0.1", "10.244.0.1")).Want()
	fake := newFake()
	converge(t, fake, w, read())
	d := kernel.ServerDestination{Server: tcp("10.96.0.1:80"), Destination: to("10.244.0.1:8080", 1)}
	must(t, fake.SetForwarding(d, kernel.ForwardRoute))
	if p := converge(t, fake, w, read()); p.Len() != 1 {
		t.Errorf("plan:\n%s", text(p))
	}
}

// I8: each operation, and what is skipped if it fails. Everything else is tried.
func TestFailures(t *testing.T) {
	const (
		ledgerAdd = "ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80"
		seal      = "ipset add KIPVS-4-LEDGER 127.0.0.1,tcp:1"
		hairpin   = "ipset add KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1"
		serverAdd = "ipvsadm -A -t 10.96.0.1:80 -s rr"
		destAdd   = "ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1"
		open      = "ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80"
		vipAdd    = "ipset add KIPVS-4-VIP 10.96.0.1"
		addrAdd   = "ip addr add 10.96.0.1/32 dev kube-ipvs0"
		addrDel   = "ip addr del 10.96.0.2/32 dev kube-ipvs0"
		closePort = "ipset del KIPVS-4-CLUSTER-IP 10.96.0.2,tcp:80"
		vipDel    = "ipset del KIPVS-4-VIP 10.96.0.2"
		serverDel = "ipvsadm -D -t 10.96.0.2:80"
		ledgerDel = "ipset del KIPVS-4-LEDGER 10.96.0.2,tcp:80"
		hairDel   = "ipset del KIPVS-4-HAIRPIN 10.244.0.2,tcp:8080,10.244.0.2"
	)
	creates := []string{ledgerAdd, serverAdd, destAdd, open, addrAdd}
	for _, test := range []struct {
		fails string
		skips []string
	}{
		{"sysctl -w net/ipv4/ip_forward=1", nil},
		{"ip link add kube-ipvs0 type dummy", []string{addrAdd}},
		{"ipset create KIPVS-4-LEDGER hash:ip,port family inet maxelem 1048576", append(slices.Clone(creates), seal, "iptables-restore IPv4 chains")},
		{"ipset create KIPVS-4-HAIRPIN hash:ip,port,ip family inet maxelem 1048576", []string{hairpin, "iptables-restore IPv4 chains", serverAdd, destAdd, open, addrAdd}},
		{"ipset create KIPVS-4-VIP hash:ip family inet maxelem 1048576", []string{vipAdd, "iptables-restore IPv4 chains", serverAdd, destAdd, open, addrAdd}},
		{"ipset create KIPVS-4-CLUSTER-IP hash:ip,port family inet maxelem 1048576", []string{"iptables-restore IPv4 chains", serverAdd, destAdd, open, addrAdd}},
		{"iptables-restore IPv4 chains", []string{serverAdd, destAdd, open, addrAdd}},
		{hairpin, nil},
		{ledgerAdd, []string{seal, serverAdd, destAdd, open, addrAdd}},
		{seal, nil},
		{serverAdd, []string{destAdd, open, addrAdd}},
		{destAdd, nil},
		{open, nil},
		{vipAdd, []string{addrAdd}},
		{addrAdd, nil},
		{addrDel, []string{vipDel, serverDel, ledgerDel}},
		{closePort, []string{serverDel, ledgerDel}},
		{vipDel, nil},
		{serverDel, []string{ledgerDel}},
		{ledgerDel, nil},
		{hairDel, nil},
	} {
		t.Run(test.fails, func(t *testing.T) {
			w, have, p := failurePlan(t, test.fails)
			failures := diff.NewFailures(w, have)
			var skipped []string
			for _, op := range p.Ops() {
				if op.String() == test.fails {
					failures.Add(op, errTest)
					continue
				}
				err := failures.Blocks(op)
				if err == nil {
					have.Advance(op)
					continue
				}
				if strings.Count(err.Error(), "skipped") != 1 {
					t.Errorf("%s: %v", op, err)
				}
				skipped = append(skipped, op.String())
				failures.Add(op, err)
			}
			slices.Sort(skipped)
			want := slices.Sorted(slices.Values(test.skips))
			if d := cmp.Diff(want, skipped); d != "" {
				t.Errorf("-want +have:\n%s", d)
			}
		})
	}
}

// failurePlan creates 10.96.0.1 and deletes 10.96.0.2, or starts from an empty kernel if the failing operation is one of a first start.
func failurePlan(t *testing.T, fails string) (*want.State, *kernel.State, diff.Plan) {
	fake := newFake()
	old := compile.NewCluster(config4())
	gone := compiletest.Service("old", "10.96.0.2", "10.244.0.2")
	old.Update(map[model.ServiceID]*model.Service{gone.ID: gone}, touchedNone())
	if strings.Contains(fails, "10.96.0.2") || strings.Contains(fails, "10.244.0.2") {
		converge(t, fake, old.Want(), read())
	}
	c := compile.NewCluster(config4())
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	c.Update(map[model.ServiceID]*model.Service{web.ID: web}, touchedNone())
	have := fake.State()
	p := plan(c.Want(), have, read())
	if !slices.Contains(commands(p), fails) {
		t.Fatalf("no %q in\n%s", fails, text(p))
	}
	return c.Want(), have, p
}

// An address is bound although one of its virtual servers cannot be created, if it has another one: only that port stays closed.
func TestOneServerOfAnAddressFails(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	web.Ports = append(web.Ports, model.ServicePort{Name: "https", Protocol: inet.TCP, Port: 443})
	w := clusterOf(web).Want()
	have := newFake().State()
	p := plan(w, have, read())
	failures := diff.NewFailures(w, have)
	bind := opNamed(t, p, "ip addr add 10.96.0.1/32 dev kube-ipvs0")
	replaced := kernel.Op{Verb: kernel.Delete, Object: serverAt(tcp("10.96.0.1:81"))}
	if failures.Blocks(bind) == nil {
		t.Error("bound without any server")
	}
	if failures.Blocks(replaced) == nil {
		t.Error("the last server that stands is deleted before another one does")
	}
	have.Advance(kernel.Op{Verb: kernel.Create, Object: serverAt(tcp("10.96.0.1:443"))})
	for _, op := range []kernel.Op{bind, replaced} {
		if err := failures.Blocks(op); err != nil {
			t.Errorf("%s, with one of two servers missing: %v", op, err)
		}
	}
}

// An incremental sync does not repair what all Services depend on, so that is still missing. The failure of a single object is forgotten.
func TestFailuresNext(t *testing.T) {
	w, have, p := failurePlan(t, "iptables-restore IPv4 chains")
	failures := diff.NewFailures(w, have)
	failures.Add(opNamed(t, p, "ipset create KIPVS-4-VIP hash:ip family inet maxelem 1048576"), errTest)
	failures.Add(opNamed(t, p, "iptables-restore IPv4 chains"), errTest)
	failures.Add(opNamed(t, p, "ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80"), errTest)
	next := failures.Next()
	if next.Blocks(opNamed(t, p, "ipset add KIPVS-4-VIP 10.96.0.1")) == nil {
		t.Error("writes to a set that is not there")
	}
	if next.Blocks(opNamed(t, p, "ipset add KIPVS-4-LEDGER 127.0.0.1,tcp:1")) != nil {
		t.Error("the failure of a single entry was not forgotten")
	}
	if next.Blocks(opNamed(t, p, "ipvsadm -A -t 10.96.0.1:80 -s rr")) == nil {
		t.Error("makes a server without rules")
	}
}

// A virtual server that is taken over is not written before the ledger has it.
func TestTakingOverNeedsTheLedger(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	w := clusterOf(web).Want()
	fake := start(t, clusterOf().Want())
	key := tcp("10.96.0.1:80")
	old := serverAt(key)
	old.Scheduler = "wrr"
	must(t, fake.AddAddress(bound("10.96.0.1")))
	must(t, fake.AddServer(old))
	must(t, fake.FlushSet(ledger4))
	have := fake.State()
	p := plan(w, have, read())
	failures := diff.NewFailures(w, have)
	failures.Add(opNamed(t, p, "ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80"), errTest)
	for _, command := range []string{
		"ipset add KIPVS-4-LEDGER 127.0.0.1,tcp:1", "ipvsadm -E -t 10.96.0.1:80 -s rr",
		"ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1", "ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80",
	} {
		if failures.Blocks(opNamed(t, p, command)) == nil {
			t.Errorf("%s is tried", command)
		}
	}
}
