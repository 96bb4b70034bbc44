package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// TestHostGet: Get reads only the start of a long response, and fails on a closed port.
func TestHostGet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, strings.Repeat("x", 1<<16))
	}))
	h := thisHost{t.Context()}
	status, body, err := h.Get(server.URL)
	if err != nil || status != http.StatusServiceUnavailable || len(body) != 1024 {
		t.Errorf("got status %d, %d bytes and error %v, want status 503 and 1024 bytes", status, len(body), err)
	}
	server.Close()
	if _, _, err := h.Get(server.URL); err == nil {
		t.Error("got no error for a closed port")
	}
}

// TestHostFiles: ReadFile returns the whole file or an error; Tail returns only the end of a file.
func TestHostFiles(t *testing.T) {
	h, file := thisHost{t.Context()}, filepath.Join(t.TempDir(), "file")
	for size, whole := range map[int]bool{mostOfFile: true, mostOfFile + 1: false} {
		if err := os.WriteFile(file, append(bytes.Repeat([]byte("x"), size-1), 'y'), 0o600); err != nil {
			t.Fatal(err)
		}
		if text, err := h.ReadFile(file); (err == nil) != whole || len(text) != map[bool]int{true: size}[whole] {
			t.Errorf("file of %d bytes: read %d bytes, error %v", size, len(text), err)
		}
	}
	if end, err := h.Tail(file); err != nil || len(end) != mostOfLog || end[len(end)-1] != 'y' {
		t.Errorf("Tail returned %d bytes and error %v", len(end), err)
	}
	if _, err := h.Tail(file + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestServerCertificates: a server's certificates are returned even if they are not trusted.
func TestServerCertificates(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	h := thisHost{t.Context()}
	chain, err := h.ServerCertificates(server.Listener.Addr().String(), "")
	if err != nil || len(chain) != 1 || !bytes.Equal(chain[0], server.Certificate().Raw) {
		t.Errorf("%d certificates, %v", len(chain), err)
	}
	if _, err := h.ServerCertificates("127.0.0.1:1", ""); err == nil {
		t.Error("got no error for a closed port")
	}
}

// nothing is a host on which every read fails.
type nothing struct{ doctor.Host }

var errNothing = errors.New("boom")

func (nothing) ReadFile(string) ([]byte, error)                           { return nil, errNothing }
func (nothing) Tail(string) ([]byte, error)                               { return nil, errNothing }
func (nothing) Names(string) ([]string, error)                            { return nil, errNothing }
func (nothing) Get(string) (int, string, error)                           { return 0, "", errNothing }
func (nothing) Leftovers() ([]kernel.Leftover, error)                     { return nil, errNothing }
func (nothing) ClockSynchronized() (bool, error)                          { return false, errNothing }
func (nothing) Interfaces() ([]kernel.Interface, error)                   { return nil, errNothing }
func (nothing) Pods() ([]kernel.Pod, error)                               { return nil, errNothing }
func (nothing) APIServer() string                                         { return "" }
func (nothing) ServerCertificates(string, string) (_ [][]byte, err error) { return nil, errNothing }
func (nothing) KernelLog() (string, error)                                { return "", errNothing }
func (nothing) ConnectPrograms() (int, error)                             { return 0, errNothing }
func (nothing) Neighbors() ([]kernel.Neighbor, error)                     { return nil, errNothing }
func (nothing) Queues() ([]kernel.Queue, error)                           { return nil, errNothing }

// TestFactsOfTheKernel: the facts list each part of the kernel that cannot be read, and still count the objects of
// the other parts.
func TestFactsOfTheKernel(t *testing.T) {
	key := func(text string) kernel.ServerKey {
		return kernel.ServerKey{Addr: netip.MustParseAddrPort(text), Protocol: inet.TCP}
	}
	parts := []explain.Part{explain.Servers, explain.Sets, explain.Rules, explain.Chains, explain.Addresses}
	for _, unread := range parts {
		m := &Machine{
			Machine: daemon.Machine{Check: func(context.Context, preflight.Needs) preflight.Result { return preflight.Result{} }},
			Release: func() string { return "7.2.0" }, Host: func(context.Context) doctor.Host { return nothing{} },
			Kernel: func(context.Context, Look) *explain.Kernel {
				return &explain.Kernel{
					State: &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{
						key("192.0.2.1:30080"): {}, key("10.96.0.1:443"): {}, key("[fd00::1]:443"): {},
					}},
					NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Unread: map[explain.Part]explain.Unread{unread: {Why: "cannot read"}},
				}
			},
		}
		facts := m.Facts(t.Context(), Agent{Silence: errors.New("no agent")}, &config.Settings{}, false)
		if !slices.Contains(facts.Unread, fmt.Sprintf("%s: cannot read", unread)) {
			t.Errorf("%s is not among the unread parts %q", unread, facts.Unread)
		}
		if facts.VirtualServers != 3 || facts.IPv6Servers != 1 || !slices.Equal(facts.NodePorts, []uint16{30080}) {
			t.Errorf("got %d virtual servers, %d of them IPv6, and node ports %v; want 3, 1 and 30080", facts.VirtualServers, facts.IPv6Servers, facts.NodePorts)
		}
	}
}

// TestPathsWithoutAnAgent: if no agent responds, doctor follows packets to some of the kernel's virtual servers, and connects to them.
func TestPathsWithoutAnAgent(t *testing.T) {
	k := &explain.Kernel{State: &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{}}}
	add := func(addr string, protocol inet.Protocol, weight uint32) {
		s := kernel.ObservedServer{}
		s.Key = kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: protocol}
		s.Destinations = []kernel.ObservedDestination{{Destination: kernel.Destination{Addr: netip.MustParseAddrPort("10.244.0.1:80"), Weight: weight}}}
		k.Servers[s.Key] = s
	}
	for i := range 20 {
		add(fmt.Sprintf("10.96.0.%d:80", i+1), inet.TCP, 1)
	}
	add("[fd00::1]:80", inet.TCP, 1)
	add("[fd00::2]:80", inet.UDP, 1)
	add("[fd00::3]:80", inet.TCP, 0)
	m := &Machine{
		Machine: daemon.Machine{Check: func(context.Context, preflight.Needs) preflight.Result { return preflight.Result{} }},
		Release: func() string { return "7.2.0" }, Host: func(context.Context) doctor.Host { return nothing{} },
		Kernel: func(_ context.Context, look Look) *explain.Kernel {
			for key := range k.Servers {
				look.Concerns(key)
			}
			return k
		},
		Connect: func(context.Context, netip.AddrPort) error { return errNothing },
		Measure: func(context.Context, *doctor.Echo) {}, Probe: func(*doctor.Probed) error { return nil },
	}
	facts := m.Facts(t.Context(), Agent{Silence: errors.New("no agent")}, &config.Settings{}, true)
	v6 := slices.DeleteFunc(slices.Clone(facts.Walks), func(w doctor.Walk) bool { return w.To.Family() == inet.IPv4 })
	if len(facts.Walks) != 5 || len(v6) != 1 || v6[0].To.Addr != netip.MustParseAddrPort("[fd00::1]:80") {
		t.Errorf("%+v", facts.Walks)
	}
	for _, w := range facts.Walks {
		if !w.Connected || w.Failure == "" {
			t.Errorf("%s: got Connected %t and Failure %q, want a failed connection", w, w.Connected, w.Failure)
		}
	}
}
