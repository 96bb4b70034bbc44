package healthport

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	web   = model.ServiceID{Namespace: "default", Name: "web"}
	dns   = model.ServiceID{Namespace: "kube-system", Name: "dns"}
	home4 = netip.MustParseAddr("127.0.0.1")
	home6 = netip.MustParseAddr("::1")
)

// node is a fake node whose Ports run until the test ends.
type node struct {
	*Ports
	t       *testing.T
	healthy atomic.Bool
	stop    context.CancelFunc
	stopped chan struct{}

	mu                 sync.Mutex
	failures           map[model.ServiceID]error
	listening, failing int
	answers            map[int]int

	refused *atomic.Pointer[refusal]
}

func newNode(t *testing.T) *node {
	n := &node{t: t, failures: map[model.ServiceID]error{}, answers: map[int]int{}, stopped: make(chan struct{})}
	n.healthy.Store(true)
	n.Ports = New(Config{
		Families:  inet.Families,
		Healthy:   n.healthy.Load,
		Responded: func(status int) { n.mu.Lock(); defer n.mu.Unlock(); n.answers[status]++ },
		Failed:    func(id model.ServiceID, err error) { n.mu.Lock(); defer n.mu.Unlock(); n.failures[id] = err },
		Counted: func(listening, failing int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.listening, n.failing = listening, failing
		},
		Log: zap.NewNop(),
	})
	n.retry = 5 * time.Millisecond
	return n
}

func (n *node) run() *node {
	ctx, cancel := context.WithCancel(n.t.Context())
	n.stop = func() { cancel(); <-n.stopped }
	go func() { defer close(n.stopped); n.Run(ctx) }()
	n.t.Cleanup(n.stop)
	return n
}

// until waits for a state that Run reaches in another goroutine.
func (n *node) until(what string, reached func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !reached(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.t.Fatalf("never %s: %d listening, %d failing: %v", what, n.listening, n.failing, n.failures)
		}
	}
}

// untilReported waits until the callbacks in Config have reported a state.
func (n *node) untilReported(what string, reported func() bool) {
	n.t.Helper()
	n.until(what, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return reported()
	})
}

func (n *node) failure(id model.ServiceID) string { return fmt.Sprint(n.failures[id]) }

func (n *node) untilCounted(listening, failing int) {
	n.t.Helper()
	n.untilReported(fmt.Sprintf("%d listening and %d failing", listening, failing), func() bool {
		return n.listening == listening && n.failing == failing
	})
}

// client does not reuse connections, so no connection stays open.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}

type answer struct {
	Status int
	Body   string
	Header map[string]string
}

func ask(t *testing.T, method, url string) answer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	header := map[string]string{}
	for _, name := range []string{"Content-Type", "X-Content-Type-Options", "X-Load-Balancing-Endpoint-Weight"} {
		header[name] = got.Header.Get(name)
	}
	return answer{got.StatusCode, string(body), header}
}

// bodyAt returns "" if there is no response, because the port may be moving from one Service to another.
func bodyAt(url string) string {
	got, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer func() { _ = got.Body.Close() }()
	body, _ := io.ReadAll(got.Body)
	return string(body)
}

func url(addr netip.Addr, port uint16) string {
	return "http://" + netip.AddrPortFrom(addr, port).String()
}

func open(addr netip.Addr, port uint16) bool {
	conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, port).String(), 5*time.Second)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func taken(t *testing.T, addr netip.Addr) (uint16, io.Closer) {
	t.Helper()
	port := freeport.Get(t)
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, port).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return port, l
}

// TestResponses: Ports respond in both families, on any path and to any method, with exactly kube-proxy's response.
func TestResponses(t *testing.T) {
	n := newNode(t).run()
	port := freeport.Get(t)
	for _, step := range []struct {
		local   int
		healthy bool
		status  int
	}{{2, true, 200}, {1, true, 200}, {0, true, 503}, {3, false, 503}, {0, false, 503}, {1, true, 200}} {
		n.healthy.Store(step.healthy)
		n.Update(map[model.ServiceID]Port{web: {port, step.local}})
		n.untilCounted(1, 0)
		want := answer{
			Status: step.status,
			Body: fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n"+
				"\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", step.local, step.healthy),
			Header: map[string]string{
				"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": fmt.Sprint(step.local),
			},
		}
		for _, home := range []netip.Addr{home4, home6} {
			for _, path := range []string{"/", "/healthz", "/any//path?at=all"} {
				if d := gocmp.Diff(want, ask(t, "GET", url(home, port)+path)); d != "" {
					t.Errorf("%+v: GET %s%s (-want +got):\n%s", step, home, path, d)
				}
			}
		}
		if got := ask(t, "POST", url(home4, port)); got.Status != step.status {
			t.Errorf("%+v: POST: %d", step, got.Status)
		}
	}
	n.untilReported("7 responses a step", func() bool { return n.answers[200] == 21 && n.answers[503] == 21 })
}

// TestOptionsAsterisk: by default, net/http would respond 200 to "OPTIONS *".
func TestOptionsAsterisk(t *testing.T) {
	n := newNode(t).run()
	port := freeport.Get(t)
	n.Update(map[model.ServiceID]Port{web: {port, 0}})
	n.untilCounted(1, 0)
	conn, err := net.Dial("tcp", netip.AddrPortFrom(home4, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 503 ") {
		t.Errorf("%v, %s", err, got)
	}
}

// TestPortsMoveBetweenServices moves ports back and forth in one update. The previous owner's listener never gets in
// the way.
func TestPortsMoveBetweenServices(t *testing.T) {
	n := newNode(t).run()
	a, b := freeport.Get(t), freeport.Get(t)
	for range 20 {
		n.Update(map[model.ServiceID]Port{web: {a, 1}, dns: {b, 1}})
		n.untilCounted(2, 0)
		n.until("answering as the new owners", func() bool {
			return strings.Contains(bodyAt(url(home4, a)), `"web"`) && strings.Contains(bodyAt(url(home6, b)), `"dns"`)
		})
		a, b = b, a
	}
	n.untilReported("no failure reported", func() bool { return len(n.failures) == 0 })
}

func TestPortsEndWithTheirServices(t *testing.T) {
	n := newNode(t).run()
	port, other := freeport.Get(t), freeport.Get(t)
	n.Update(map[model.ServiceID]Port{web: {port, 1}, dns: {other, 1}})
	n.untilCounted(2, 0)
	n.Update(map[model.ServiceID]Port{web: {}})
	n.untilCounted(1, 0)
	if open(home4, port) || open(home6, port) || !open(home4, other) {
		t.Error("want the first port closed in both families, and the second open")
	}
	n.stop()
	if open(home4, other) {
		t.Error("a port is still open after Run has ended")
	}
}

// TestAddresses: Ports listens only on the given addresses of a family. If a family has none, it listens on all addresses.
func TestAddresses(t *testing.T) {
	n := newNode(t).run()
	port := freeport.Get(t)
	second := netip.MustParseAddr("127.0.0.2")
	n.Update(map[model.ServiceID]Port{web: {port, 1}})
	check := func(when string, want map[netip.Addr]bool) {
		t.Helper()
		n.until(when, func() bool {
			for addr, reachable := range want {
				if open(addr, port) != reachable {
					return false
				}
			}
			return true
		})
	}
	check("everywhere", map[netip.Addr]bool{home4: true, second: true, home6: true})
	n.SetAddresses([]netip.Addr{second})
	check("on the second address and all IPv6 addresses", map[netip.Addr]bool{home4: false, second: true, home6: true})
	n.SetAddresses([]netip.Addr{home4, home6, home4})
	check("on the first addresses", map[netip.Addr]bool{home4: true, second: false, home6: true})
	n.SetAddresses(nil)
	check("everywhere again", map[netip.Addr]bool{home4: true, second: true, home6: true})
	n.untilCounted(1, 0)
}
