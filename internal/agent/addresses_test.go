package agent_test

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func public(endpoints ...string) *model.Service {
	svc := web(endpoints...)
	svc.Ports[0].NodePort = 30080
	svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	return svc
}

var webID = model.ServiceID{Namespace: "default", Name: "web"}

func TestAddressesComeAndGo(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(public())
		w.start()
		w.converged()
		for _, addrs := range [][]string{
			{"192.0.2.1", "10.0.0.1"}, {"10.0.0.1"}, {"10.0.0.1", "203.0.113.1"}, {"fd00:2::1"}, {"203.0.113.1"}, {"192.0.2.1"},
		} {
			w.move(compiletest.At(addrs...))
			w.is()
		}
	})
}

// I15: a node that loses all addresses keeps its node ports for a moment, because a network may have no address while
// it is reconfigured.
func TestNodeWithoutAddresses(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(public())
		w.start()
		before := w.fake.Dump()
		for range 2 {
			w.move(compiletest.At())
			w.sleep(agent.HoldAddresses / 2)
			w.move(compiletest.At("192.0.2.1", "fd00:2::1"))
			if d := cmp.Diff(before, w.fake.Dump()); d != "" {
				w.Errorf("after a short time without addresses (-before +after):\n%s", d)
			}
		}
		w.move(compiletest.At())
		w.sleep(2 * agent.HoldAddresses)
		w.converged()
	})
}

// The loop reads the addresses again only if an audit finds them changed, because reading them takes a long time with many Services.
func TestAddressesAreReadByAudits(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.AddressesChanged = nil
		w.put(public())
		w.start()
		w.move(compiletest.At("10.0.0.1"))
		if w.has("10.0.0.1:30080") {
			w.Fatal("the agent read the addresses without a notification")
		}
		w.audit()
		w.is()
		w.fake.TakeCounts()
		w.audit()
		if c := w.fake.TakeCounts(); c.Reads == 0 || c.NodeReads > 0 {
			w.Errorf("an audit that finds nothing changed costs %+v", c)
		}
	})
}

// I4: while the node's addresses cannot be read, its node port frontends are unknown. Existing frontends stay.
func TestUnreadableAddressesAtStart(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(public())
		w.start()
		w.stop()
		before := w.fake.Dump()
		w.fake.TakeCounts()
		w.takeReports()
		for range 8 {
			w.fake.FailNextNodeAddresses(syscall.EMFILE)
		}
		w.services[webID] = public("10.244.0.9")
		w.start()
		w.put(compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
		w.sleep(10 * time.Second)
		if c := w.fake.TakeCounts(); w.fake.Dump() != before || c.Writes() > 0 {
			w.Errorf("counts %+v, kernel:\n%s", c, w.fake.Dump())
		}
		reports := w.takeReports()
		for _, r := range reports {
			if r.Err == nil || !strings.Contains(r.Err.Error(), "addresses") || r.RetryAfter <= 0 {
				w.Errorf("a sync returned %v and is retried after %s; want an error about addresses, and a retry", r.Err, r.RetryAfter)
			}
		}
		if n := len(reports); n < 7 || n > 8 { // after 0.1 s, 0.2 s, 0.4 s ..., and one for the change
			w.Errorf("there were %d syncs in 10 s", n)
		}
		w.sleep(time.Minute)
		w.is()
	})
}

func TestUnreadableAddressesLater(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(public())
		w.start()
		for range 3 {
			w.fake.FailNextNodeAddresses(syscall.EMFILE)
		}
		w.takeReports()
		w.services[webID] = public("10.244.0.1", "10.244.0.2")
		w.source.put(w.services)
		w.move(compiletest.At("10.0.0.1"))
		if r := w.lastReport(); r.Err == nil || !strings.Contains(r.Err.Error(), "addresses") {
			w.Errorf("report: %v", r.Err)
		}
		if !w.has("-a -t 192.0.2.1:30080 -r 10.244.0.2:8080") || w.has("10.0.0.1:30080") {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
		w.sleep(time.Second)
		w.is()
	})
}

// Until the agent has read the node's addresses, all claims count as new, so no Service takes an address or port that
// the node uses.
func TestFirstLookFails(t *testing.T) {
	for name, fail := range map[string]func(*kerneltest.Fake){
		"nothing":              func(*kerneltest.Fake) {},
		"the addresses":        func(f *kerneltest.Fake) { f.FailNextNodeAddresses(syscall.EMFILE) },
		"the networks":         func(f *kerneltest.Fake) { f.FailNextNetwork(syscall.EMFILE) },
		"the earlier servers":  func(f *kerneltest.Fake) { f.FailNextRead(syscall.EMFILE) },
		"addresses, then more": func(f *kerneltest.Fake) { f.FailNextNodeAddresses(syscall.EMFILE); f.FailNextNetwork(syscall.EMFILE) },
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.around.Listeners = kernel.Listeners{tcp("0.0.0.0:80"): {}}
				w.fake.SetListeners(tcp("0.0.0.0:80"))
				w.fake.SetNetwork(kernel.Network{netip.MustParseAddr("203.0.113.1"): {Kind: kernel.Gateway}})
				svc := web()
				svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.7")}
				w.put(svc)
				fail(w.fake)
				w.start()
				w.put(compiletest.Service("later", "10.96.0.9", "10.244.0.1"))
				w.remove("later")
				w.sleep(10 * time.Second)
				if w.has("203.0.113.1") || w.has("192.0.2.1:80") || !w.has("198.51.100.7:80") || w.has("10.96.0.9") {
					w.Errorf("kernel:\n%s", w.fake.Dump())
				}
			})
		})
	}
}

func TestNetworksComeAndGo(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(public())
		w.start()
		w.converged()
		gateway := kernel.Network{netip.MustParseAddr("203.0.113.1"): {Kind: kernel.Gateway}}
		for _, network := range []kernel.Network{gateway, nil, gateway} {
			w.fake.SetNetwork(network)
			w.move(w.around)
			w.sleep(time.Second)
			if w.has("203.0.113.1") == (network != nil) {
				w.Errorf("with networks %v, the kernel has the wrong state:\n%s", network, w.fake.Dump())
			}
		}
		w.calm()
		w.audit()
		w.fake.SetNetwork(nil)
		for range 3 {
			w.fake.FailNextNetwork(syscall.EMFILE)
		}
		w.takeReports()
		w.services[webID] = public("10.244.0.1", "10.244.0.2")
		w.source.put(w.services)
		w.move(w.around)
		if r := w.lastReport(); r.Err == nil || !strings.Contains(r.Err.Error(), "networks") {
			w.Errorf("report: %v", r.Err)
		}
		if w.has("203.0.113.1") || !w.has("-a -t 192.0.2.1:30080 -r 10.244.0.2:8080") {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
		w.sleep(time.Second)
		w.is()
	})
}

func TestServiceReleasesTheAPIServersAddress(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(public())
		w.start()
		w.converged()
		for _, at := range []string{"203.0.113.1:6443", "203.0.113.9:6443"} {
			w.source.putAPIServer(netip.MustParseAddrPort(at))
			w.sleep(time.Second)
			if refused := at == "203.0.113.1:6443"; w.has("203.0.113.1") == refused {
				w.Errorf("with the API server at %s, the kernel has the wrong state:\n%s", at, w.fake.Dump())
			}
		}
	})
}

func TestNodesComeAndGo(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(public(), compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
		w.start()
		w.converged()
		theirs := &model.Node{Name: "node-b", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")}}
		remoteNode := &model.Node{Name: "node-b", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
		for _, node := range []*model.Node{theirs, remoteNode, theirs, nil} {
			w.takeReports()
			to := compiletest.At("192.0.2.1", "fd00:2::1")
			if to.Nodes["node-b"] = node; node == nil {
				to.Nodes = map[string]*model.Node{}
			}
			w.move(to)
			var compiled []model.ServiceID
			for _, r := range w.takeReports() {
				compiled = append(compiled, r.Compiled...)
			}
			if !slices.Equal(compiled, []model.ServiceID{webID}) {
				w.Errorf("compiled %v", compiled)
			}
			w.is()
		}
	})
}

func TestThisNodeChanges(t *testing.T) {
	bubble(t, func(w *world) {
		svc := dns("10.244.0.1", "10.244.0.2")
		svc.Slices[0].Endpoints[0].Hints = &model.Hints{ForZones: []string{"zone-1"}}
		svc.Slices[0].Endpoints[1].Hints = &model.Hints{ForZones: []string{"zone-2"}}
		w.put(svc)
		w.start()
		w.converged()
		for _, zone := range []string{"zone-1", "zone-2", "", "zone-2"} {
			to := w.around
			to.Nodes = map[string]*model.Node{compiletest.Node: {Name: compiletest.Node, Zone: zone, Leaving: zone == ""}}
			w.move(to)
			if n := w.lastReport().Node; n == nil || n.Zone != zone || n.Leaving != (zone == "") {
				w.Errorf("the report's node is %+v", n)
			}
			w.is()
		}
		to := w.around
		to.Nodes = map[string]*model.Node{}
		w.move(to)
		w.is()
	})
}

func TestHealthPortsAreReported(t *testing.T) {
	calmBubble(t, func(w *world) {
		svc := public()
		svc.ExternalLocal, svc.HealthCheckPort = true, 32000
		w.put(svc)
		w.start()
		expect := func(want compile.HealthPort) {
			w.Helper()
			if got := w.lastReport().Served; got[svc.ID].Health != want {
				w.Errorf("the health ports are %v, want %v", got, want)
			}
		}
		expect(compile.HealthPort{Port: 32000, Local: 1})
		w.put(compiletest.WithEndpoint(svc, model.Endpoint{Addr: netip.MustParseAddr("10.244.0.2"), Ready: true, Node: compiletest.Node}))
		expect(compile.HealthPort{Port: 32000, Local: 2})
		w.remove("web")
		expect(compile.HealthPort{})
	})
}

func TestIPv6Disabled(t *testing.T) {
	calmBubble(t, func(w *world) {
		turn := func(value string) func(*kerneltest.Fake) error {
			return func(f *kerneltest.Fake) error {
				return errors.Join(
					f.SetSysctl(kernel.SysctlSetting{Name: kernel.IPv6SwitchOfNext, Value: value}),
					f.SetSysctl(kernel.SysctlSetting{Name: kernel.IPv6Switch, Value: value}))
			}
		}
		w.damage(turn("1"))
		w.put(web("10.244.0.1"), compiletest.Service("six", "fd00::1", "fd01::1"), compiletest.Service("seven", "fd00::2", "fd01::1"))
		w.start()
		w.put(compiletest.Service("eight", "fd00::3", "fd01::1"))
		w.sleep(3 * auditInterval)
		for _, r := range w.takeReports() {
			if r.Err != nil {
				w.Errorf("a sync failed: %v", r.Err)
			}
		}
		if n := len(warnings(w, "IPv6 is disabled")); n != 1 {
			w.Errorf("logged %d times", n)
		}
		if !w.has("ip addr add 10.96.0.1/32") || w.has("ip addr add fd00::") || !w.has("ipvsadm -A -t [fd00::3]:80") {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
		v, err := w.agent.View(w.Context(), agent.Query{})
		if err != nil || len(v.NodeProblems) != 1 || !strings.Contains(v.NodeProblems[0].Text, "net.ipv6.conf.kube-ipvs0.disable_ipv6") {
			w.Errorf("the problems of the node are %+v, error %v", v.NodeProblems, err)
		}
		w.damage(turn("0"))
		w.sleep(auditInterval)
		w.is()
		if v, err = w.agent.View(w.Context(), agent.Query{}); err != nil || len(v.NodeProblems) > 0 {
			w.Errorf("the node still has problems: %+v, error %v", v.NodeProblems, err)
		}
	})
}

func TestBroadcastEndpointFailsNoSync(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("192.0.2.255", "10.244.0.1"), compiletest.Service("other", "10.96.0.2", "10.244.0.2"))
		w.start()
		w.converged()
		broadcast := kernel.NetworkRole{Kind: kernel.Broadcast, Subnet: netip.MustParsePrefix("192.0.2.0/24")}
		w.fake.SetNetwork(kernel.Network{netip.MustParseAddr("192.0.2.255"): broadcast})
		w.move(w.around)
		w.takeReports()
		w.restart()
		w.put(web("192.0.2.255", "10.244.0.1", "10.244.0.3"))
		w.sleep(2 * auditInterval)
		for _, r := range w.takeReports() {
			if r.Err != nil {
				w.Errorf("a sync failed: %v", r.Err)
			}
		}
		if w.has("-r 192.0.2.255") || !w.has("-r 10.244.0.3:8080") || len(warnings(w, "is the broadcast address")) == 0 {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
	})
}

func TestClaimsAtNodesStay(t *testing.T) {
	bubble(t, func(w *world) {
		publish := func(name, clusterIP, external string) *model.Service {
			svc := compiletest.Service(name, clusterIP, "10.244.0.1")
			svc.ExternalIPs = []netip.Addr{netip.MustParseAddr(external)}
			return svc
		}
		w.put(publish("own", "10.96.0.1", "192.0.2.1"), publish("other", "10.96.0.2", "203.0.113.7"))
		w.start()
		w.converged()
		expect := func(when string, own, other, late bool) {
			w.Helper()
			w.sleep(2 * time.Second)
			if w.has("-A -t 192.0.2.1:80") != own || w.has("-A -t 203.0.113.7:80") != other || w.has("-A -t 192.0.2.1:81") != late {
				w.Errorf("%s:\n%s", when, w.fake.Dump())
			}
		}
		theirs := compiletest.At("192.0.2.1", "fd00:2::1")
		theirs.Listeners = kernel.Listeners{tcp("0.0.0.0:80"): {}, tcp("0.0.0.0:81"): {}}
		w.fake.SetListeners(slices.Collect(maps.Keys(theirs.Listeners))...)
		theirs.Nodes["node-b"] = &model.Node{Name: "node-b", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.7")}}
		w.move(theirs)
		late := publish("late", "10.96.0.3", "192.0.2.1")
		late.Ports[0].Port = 81
		w.put(late)
		expect("a process listens and a Node lists the address", true, true, false)
		w.restart()
		w.converged()
		expect("restarted", true, true, false)
		w.remove("own", "other")
		w.converged()
		w.put(publish("own", "10.96.0.1", "192.0.2.1"), publish("other", "10.96.0.2", "203.0.113.7"))
		expect("new", false, false, false)
		w.fake.SetListeners()
		w.mu.Lock() // the running agent's watcher reads this variable
		w.around.Listeners = nil
		w.mu.Unlock()
		w.audit()
		expect("the processes ended", true, false, true)
	})
}

func TestRefusedPortsListNoSockets(t *testing.T) {
	const changes = 50
	for name, c := range map[string]struct {
		port func(change int) uint16
		most int
	}{
		"a port that the node needs":   {func(int) uint16 { return 22 }, 0},
		"a port that a process has":    {func(int) uint16 { return 8080 }, 2},
		"a port that nothing prevents": {func(int) uint16 { return 8081 }, 1},
		"another port each time":       {func(change int) uint16 { return uint16(9000 + change) }, 2},
		"a port every other time":      {func(change int) uint16 { return uint16(22 + change%2*8059) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.around.Listeners = kernel.Listeners{tcp("0.0.0.0:8080"): {}}
				w.fake.SetListeners(tcp("0.0.0.0:8080"))
				w.put(web())
				w.start()
				w.fake.TakeCounts()
				for i := range changes {
					svc := onPort(compiletest.Service("evil", "10.96.0.66", "10.244.0.1"), c.port(i), 8080)
					svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
					w.put(compiletest.WithEndpoint(svc, compiletest.Ready(compiletest.Pod(i))))
				}
				if n := w.fake.TakeCounts().SocketLists; n > c.most {
					t.Errorf("%d changes caused %d lists of sockets", changes, n)
				}
			})
		})
	}
}
