package userspace

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// fakeHost is a machine to which addresses can be added. The process cannot listen there, because the machine that runs the test lacks
// them. The test in Wine has a machine with a Service's address.
type fakeHost struct {
	node    kernel.Node
	kept    map[netip.Addr]struct{}
	refuses netip.Addr
	err     error
}

func (h *fakeHost) Node() (*kernel.Node, error) { return &h.node, h.err }

func (h *fakeHost) Keep(wanted map[netip.Addr]struct{}) (map[netip.Addr]error, error) {
	h.kept = maps.Clone(wanted)
	failed := map[netip.Addr]error{}
	if _, asked := wanted[h.refuses]; asked {
		failed[h.refuses] = errors.New("add " + h.refuses.String() + ": access denied")
		delete(h.kept, h.refuses)
	}
	return failed, nil
}

func (h *fakeHost) addresses() string {
	var all []string
	for _, a := range slices.SortedFunc(maps.Keys(h.kept), netip.Addr.Compare) {
		all = append(all, a.String())
	}
	return strings.Join(all, " ")
}

// newHost returns a world whose machine has the address 127.0.0.1.
func newHost(t *testing.T) (*world, *fakeHost) {
	t.Helper()
	h := &fakeHost{node: kernel.Node{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Network: kernel.Network{}}}
	w := newWorld(t)
	cfg := w.Config
	cfg.Host = h
	cfg.Compile.ExternalIPs.AtNode = compile.AtNodeNone
	w.loop = newLoop(cfg)
	if _, err := w.learnNode(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.ports.forwarder.Close(0) })
	return w, h
}

// at gives a Service its ClusterIP.
func at(svc *model.Service, clusterIP string) *model.Service {
	svc.ClusterIPs = []netip.Addr{netip.MustParseAddr(clusterIP)}
	return svc
}

// TestAddressesFollowServices: the machine has the addresses of exactly the Services that exist, and the process listens there and at node
// ports. When it stops, the addresses are removed.
func TestAddressesFollowServices(t *testing.T) {
	w, h := newHost(t)
	a, number := start(t, "a"), freeport.Get(t)
	web := at(service("web", number, a), "198.51.100.2")
	w.follow(changes(web, at(service("other", 0, a), "198.51.100.3")))
	w.expect(t,
		"other/http tcp 198.51.100.3:80 for 198.51.100.3:80, 1 endpoints: Failed",
		fmt.Sprintf("web/http tcp 127.0.0.1:%d for node port %d, 1 endpoints: Listening", number, number),
		"web/http tcp 198.51.100.2:80 for 198.51.100.2:80, 1 endpoints: Failed")
	if h.addresses() != "198.51.100.2 198.51.100.3" {
		t.Errorf("addresses %q", h.addresses())
	}
	if got := answers(t, 1, fmt.Sprintf("127.0.0.1:%d", number)); got != "a" {
		t.Errorf("the node port answered %q", got)
	}
	w.follow(model.Changes{Services: map[model.ServiceID]*model.Service{web.ID: nil}})
	if h.addresses() != "198.51.100.3" {
		t.Errorf("after the deletion of a Service: addresses %q", h.addresses())
	}
	w.close()
	if h.addresses() != "" {
		t.Errorf("after the end: addresses %q", h.addresses())
	}
}

// TestNothingIsRemovedBeforeTheSourceHasSynced: an earlier agent's addresses stay until the Services are known (I4).
func TestNothingIsRemovedBeforeTheSourceHasSynced(t *testing.T) {
	w, h := newHost(t)
	if w.again(); h.kept != nil {
		t.Errorf("the machine was told to keep %q", h.addresses())
	}
	w.follow(changes())
	if h.kept == nil {
		t.Error("the machine was not told that no address is wanted")
	}
}

// TestNewNodeAddress: node ports are served at an address that the machine gets later. A machine that cannot tell its addresses keeps the
// previous ones.
func TestNewNodeAddress(t *testing.T) {
	w, h := newHost(t)
	a, number := start(t, "a"), freeport.Get(t)
	w.follow(changes(at(service("web", number, a), "198.51.100.2")))
	h.node.Addresses = append(h.node.Addresses, netip.MustParseAddr("127.0.0.9"))
	w.again()
	w.expect(t, fmt.Sprintf("web/http tcp 127.0.0.9:%d for node port %d, 1 endpoints: Listening", number, number))
	h.err = errors.New("no answer")
	if w.again(); len(w.rows) > 0 || h.addresses() != "198.51.100.2" {
		t.Errorf("ports %q, addresses %q", w.rows, h.addresses())
	}
}

// TestRefusedAddressIsAProblem: the Service's Problem names the reason, and the address is tried again.
func TestRefusedAddressIsAProblem(t *testing.T) {
	w, h := newHost(t)
	h.refuses = netip.MustParseAddr("198.51.100.2")
	w.follow(changes(at(service("web", 0, start(t, "a")), "198.51.100.2")))
	w.expect(t, "web/http tcp 198.51.100.2:80 for 198.51.100.2:80, 1 endpoints: Failed")
	if logged := w.logs.TakeAll(); !slices.ContainsFunc(logged, func(l observer.LoggedEntry) bool { return strings.Contains(l.Message, "access denied") }) {
		t.Errorf("logged %v", logged)
	}
	h.kept = nil
	if w.again(); h.kept == nil {
		t.Error("the address was not tried again")
	}
}

// TestClientsAtAddresses: policies and source ranges decide which clients a port admits, also after the machine's addresses have changed.
// A client on the machine may have the port's own address.
func TestClientsAtAddresses(t *testing.T) {
	w, h := newHost(t)
	number := freeport.Get(t)
	svc := at(service("web", number, start(t, "a")), "198.51.100.2")
	svc.ExternalLocal, svc.Slices[0].Endpoints[0].Node = true, "node-2" // so node ports and load balancers are open inside the cluster only
	svc.LoadBalancerIPs, svc.SourceRanges = []netip.Addr{netip.MustParseAddr("203.0.113.1")}, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	expect := func(port, want string) {
		t.Helper()
		for _, p := range w.ports.services[svc.ID] {
			if p.serves == port {
				if got := fmt.Sprint(p.target.Clients == nil, p.target.Clients); got != want {
					t.Errorf("%s admits %s, want %s", port, got, want)
				}
				return
			}
		}
		t.Errorf("%s is not served", port)
	}
	w.follow(changes(svc))
	expect("198.51.100.2:80", "true []")
	expect(nodePort(netip.AddrPortFrom(netip.Addr{}, number)), "false [127.0.0.1/32]")
	expect("203.0.113.1:80", "false [127.0.0.1/32 203.0.113.1/32]")
	if got := answers(t, 1, fmt.Sprintf("127.0.0.1:%d", number)); got != "a" {
		t.Errorf("the node port answered %q", got)
	}
	h.node.Addresses = append(h.node.Addresses, netip.MustParseAddr("127.0.0.9"))
	w.again()
	expect("203.0.113.1:80", "false [127.0.0.1/32 127.0.0.9/32 203.0.113.1/32]")
	ranged := *svc
	ranged.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	w.follow(changes(&ranged))
	expect("203.0.113.1:80", "false []")
}

func TestFrontendsAtAddresses(t *testing.T) {
	own := server("192.168.1.5:30080", inet.TCP)
	own.Unbound = true
	for _, c := range []struct {
		server compile.AtAddress
		want   string
	}{
		{compile.AtAddress{Server: server("10.96.0.10:80", inet.TCP)}, "tcp 10.96.0.10:80 for 10.96.0.10:80, needs 10.96.0.10"},
		{compile.AtAddress{Server: own, NodePort: true}, "tcp 192.168.1.5:30080 for node port 30080, needs invalid IP"},
	} {
		f := frontendAt(c.server, nil)
		if got := fmt.Sprintf("%s for %s, needs %s", f.listen, f.serves, f.address); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
