package userspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/userspace/shop"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const patience = 10 * time.Second

// world is a loop whose source is the test.
type world struct {
	*loop
	rows []string // the changed ports of the last update, one line each
	logs *observer.ObservedLogs
}

func (w *world) Changed() <-chan struct{} { return nil }
func (w *world) Synced() bool             { return true }
func (w *world) Take() model.Changes      { return model.Changes{} }

func newWorld(t *testing.T) *world {
	t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	w := &world{logs: logs}
	w.loop = newLoop(Config{
		Compile: compile.Config{
			Host:     compile.Host{NodeName: "node-1", Families: []inet.Family{inet.IPv4}, Mode: kernel.Userspace},
			Settings: compile.Settings{Scheduler: "rr"},
		},
		Limits: forward.Limits{Connections: 100, Flows: 10, Connect: time.Second, FlowIdle: time.Minute},
		Source: w, Log: zap.New(core),
		Changed: func(ports []view.ForwardedPort) error {
			w.rows = nil
			for _, p := range ports {
				w.rows = append(w.rows, fmt.Sprintf("%s/%s %s %s for %s, %d endpoints: %s", p.Name, p.Port, p.Protocol, p.Address, p.Serves, p.Endpoints, p.State))
			}
			return nil
		},
	})
	t.Cleanup(func() { w.ports.forwarder.Close(0) })
	return w
}

// service returns a Service with one port and endpoints at 127.0.0.1.
func service(name string, nodePort uint16, endpoints ...*endpoint) *model.Service {
	svc := &model.Service{
		ID: model.ServiceID{Namespace: "default", Name: name}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(len(name))})},
		Ports: []model.ServicePort{{Name: "http", Protocol: inet.TCP, Port: 80, NodePort: nodePort}},
	}
	for i, e := range endpoints { // one slice for each, because their ports differ
		svc.Slices = append(svc.Slices, &model.EndpointSlice{
			Name: fmt.Sprintf("%s-%d", name, i), Family: inet.IPv4, Ports: []model.EndpointPort{{Name: "http", Protocol: inet.TCP, Port: e.addr.Port()}},
			Endpoints: []model.Endpoint{{Addr: e.addr.Addr(), Ready: true, Serving: true, Node: "node-1"}},
		})
	}
	return svc
}

func changes(services ...*model.Service) model.Changes {
	c := model.Changes{Services: map[model.ServiceID]*model.Service{}}
	for _, svc := range services {
		c.Services[svc.ID] = svc
	}
	return c
}

// endpoint greets each connection with its name.
type endpoint struct {
	name string
	addr netip.AddrPort
}

func start(t *testing.T, name string) *endpoint {
	t.Helper()
	return &endpoint{name, netip.AddrPortFrom(inet.IPv4.Loopback(), shop.Endpoint(t, name))}
}

// answers returns the sorted names of the endpoints that answer some connections.
func answers(t *testing.T, n int, at string) string {
	t.Helper()
	var names []string
	for range n {
		c, err := net.DialTimeout("tcp", at, patience)
		switch {
		case errors.Is(err, errRefused):
			return "refused"
		case err != nil: // a connection can be reset while it is opened
			return "reset"
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		line, err := bufio.NewReader(c).ReadString('\n')
		if _ = c.Close(); err != nil {
			line = "reset"
		}
		names = append(names, strings.TrimSpace(line))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (w *world) expect(t *testing.T, rows ...string) {
	t.Helper()
	if got := strings.Join(w.rows, "\n"); got != strings.Join(rows, "\n") {
		t.Errorf("changed ports:\n%s\nwant:\n%s", got, strings.Join(rows, "\n"))
	}
	w.rows = nil
}

// address returns the address of a row.
func address(row string) string { return strings.Fields(row)[2] }

func TestPortsFollowServices(t *testing.T) {
	w, a, b, number := newWorld(t), start(t, "a"), start(t, "b"), freeport.Get(t)
	w.follow(changes())
	w.expect(t) // the first table is empty

	w.follow(changes(service("web", number, a, b), service("cart", 0, a)))
	node := fmt.Sprintf("127.0.0.1:%d", number)
	free := address(w.rows[0])
	w.expect(t, fmt.Sprintf("cart/http tcp %s for 10.96.0.4:80, 1 endpoints: Listening", free),
		fmt.Sprintf("web/http tcp %s for node port %d, 2 endpoints: Listening", node, number))
	if got := answers(t, 4, node); got != "a a b b" {
		t.Errorf("%s answered", got)
	}

	w.follow(changes(service("web", number, b)))
	w.expect(t, fmt.Sprintf("web/http tcp %s for node port %d, 1 endpoints: Listening", node, number))
	if got := answers(t, 2, node) + ", " + answers(t, 1, free); got != "b b, a" {
		t.Errorf("%s answered", got)
	}

	w.follow(changes(service("web", number)))
	w.expect(t, fmt.Sprintf("web/http tcp %s for node port %d, 0 endpoints: Listening", node, number))
	if got := answers(t, 1, node); got != "reset" {
		t.Errorf("without endpoints: %s", got)
	}

	gone := changes()
	gone.Services[model.ServiceID{Namespace: "default", Name: "web"}] = nil
	w.follow(gone)
	w.expect(t, fmt.Sprintf("web/http tcp %s for node port %d, 0 endpoints: Closed", node, number))
	if got := answers(t, 1, node) + ", " + answers(t, 1, free); got != "refused, a" {
		t.Errorf("after the Service was deleted: %s", got)
	}
}

// TestPortMovesToAnotherService: one change may take a node port from one Service and give it to another.
func TestPortMovesToAnotherService(t *testing.T) {
	w, a, b, number := newWorld(t), start(t, "a"), start(t, "b"), freeport.Get(t)
	w.follow(changes(service("web", number, a), service("cart", 0, b)))
	w.follow(changes(service("web", 0, a), service("cart", number, b)))
	if got := answers(t, 1, fmt.Sprintf("127.0.0.1:%d", number)); got != "b" {
		t.Errorf("%s answered, want b", got)
	}
}

// TestPortInUse: a port that another process has is a Problem of its Service, and other Services work. The agent
// opens the port once it is free.
func TestPortInUse(t *testing.T) {
	w, a := newWorld(t), start(t, "a")
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	number := uint16(other.Addr().(*net.TCPAddr).Port)
	w.follow(changes(service("web", number, a), service("cart", 0, a)))
	if got := answers(t, 1, address(w.rows[0])); got != "a" || !strings.HasSuffix(w.rows[1], "Failed") {
		t.Errorf("%s answered; ports %q", got, w.rows)
	}
	logged := w.logs.TakeAll()
	if len(logged) != 1 || !strings.Contains(logged[0].Message, "Service default/web: spec.ports") || !strings.Contains(logged[0].Message, "stop the process that has the port") {
		t.Errorf("log: %v", logged)
	}
	w.serve(w.ports.failed(), nil)
	if logged := w.logs.TakeAll(); len(logged) > 0 {
		t.Errorf("logged again: %v", logged)
	}
	_ = other.Close()
	w.serve(w.ports.failed(), nil)
	w.expect(t, fmt.Sprintf("web/http tcp 127.0.0.1:%d for node port %d, 1 endpoints: Listening", number, number))
	if len(w.ports.failed()) > 0 {
		t.Error("ports would be opened again")
	}
}

// TestHostileServices: what compile refuses is a Problem, as with the other data planes, and so is SCTP. The rest of
// the Service works.
func TestHostileServices(t *testing.T) {
	w, a, number := newWorld(t), start(t, "a"), freeport.Get(t)
	first, second := service("web", number, a), service("thief", number, a)
	second.Ports = append(second.Ports, model.ServicePort{Name: "sctp", Protocol: inet.SCTP, Port: 81})
	second.Created = time.Unix(1, 0)
	second.Slices[0].Endpoints = append(second.Slices[0].Endpoints, model.Endpoint{Addr: netip.MustParseAddr("169.254.169.254"), Ready: true})
	w.follow(changes(first, second))
	if len(w.rows) != 2 || !strings.HasSuffix(w.rows[0], "for 10.96.0.5:80, 1 endpoints: Listening") || !strings.Contains(w.rows[1], fmt.Sprintf("node port %d", number)) {
		t.Errorf("ports %q", w.rows)
	}
	var logged []string
	for _, line := range w.logs.TakeAll() {
		logged = append(logged, line.Message)
	}
	for _, want := range []string{"has the better claim", "link-local", "cannot forward SCTP"} {
		if !slices.ContainsFunc(logged, func(l string) bool { return strings.Contains(l, want) }) {
			t.Errorf("no Problem contains %q: %q", want, logged)
		}
	}
}

// TestRunServesOnlyASyncedSource: Run follows the source, and closes the ports when it ends.
func TestRunServesOnlyASyncedSource(t *testing.T) {
	a := start(t, "a")
	s := &source{changed: make(chan struct{}), synced: make(chan bool, 1), changes: changes(service("web", 0, a))}
	w := newWorld(t)
	rows := make(chan []view.ForwardedPort, 1)
	w.Config.Source, w.Config.Changed = s, func(ports []view.ForwardedPort) error { rows <- ports; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, w.Config) }()
	s.changed <- struct{}{}
	s.synced <- false
	s.changed <- struct{}{}
	s.synced <- true
	at := (<-rows)[0].Address.String()
	if got := answers(t, 1, at); got != "a" {
		t.Errorf("%s answered", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := answers(t, 1, at); got != "refused" {
		t.Errorf("after the end: %s", got)
	}
}

type source struct {
	changed chan struct{}
	synced  chan bool
	changes model.Changes
}

func (s *source) Changed() <-chan struct{} { return s.changed }
func (s *source) Synced() bool             { return <-s.synced }
func (s *source) Take() model.Changes      { return s.changes }
