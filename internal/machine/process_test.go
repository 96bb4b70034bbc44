package machine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestConnectionsOnlyIfNeeded: an agent in user space sends its connections only to commands that list them.
func TestConnectionsOnlyIfNeeded(t *testing.T) {
	asked := make(chan agent.Query, 1)
	key := kernel.TableKey{Family: inet.IPv4, Protocol: inet.TCP, Addr: netip.MustParseAddrPort("10.96.0.10:80")}
	socket := serve(t, func(v *view.View, ask agent.Query) {
		asked <- ask
		v.Forwarded = view.ForwardedOf([]kernel.TableServer{{Key: key}}, []kernel.Connection{{Virtual: key.Addr}})
	})
	for name, one := range map[string]struct {
		parts []explain.Part
		want  bool
	}{
		"services": {[]explain.Part{explain.Servers, explain.Sets}, false},
		"conns":    {[]explain.Part{explain.Servers, explain.Connections}, true},
	} {
		k := &explain.Kernel{State: &kernel.State{}, Unread: map[explain.Part]explain.Unread{}}
		readProcess(t.Context(), k, Look{Parts: one.parts, Socket: socket}, errInProcess)
		if ask := <-asked; ask != (agent.Query{Forwarded: true, Connections: one.want}) || len(k.Servers) != 1 {
			t.Errorf("%s asks %+v; %d virtual servers, unread: %v", name, ask, len(k.Servers), k.Unread)
		}
	}
}

// TestWithoutDevice: kube-ipvs0 is gone, and the node's agent is one in user space. If it still runs, it alone knows what it serves; if not, no
// command says that there is nothing. A node whose virtual servers cannot be read, or that has some, is not affected.
func TestWithoutDevice(t *testing.T) {
	key := kernel.TableKey{Family: inet.IPv4, Protocol: inet.TCP, Addr: netip.MustParseAddrPort("10.96.0.10:80")}
	running := serve(t, func(v *view.View, _ agent.Query) {
		v.Forwarded = view.ForwardedOf([]kernel.TableServer{{Key: key}}, []kernel.Connection{{Virtual: key.Addr}})
	})
	everything := func(kernel.ServerKey) bool { return true }
	for name, unread := range map[string]error{"IPVS is empty": nil, "no module": fmt.Errorf("modprobe ip_vs: %w", kernel.ErrUnavailable)} {
		m := &Machine{
			LastDataPlane: func() string { return kernel.DataPlaneUserspace },
			Counts:        func(context.Context, string) (inspect.Counts, error) { return nil, unread },
			Kernel: func(context.Context, Look) *explain.Kernel {
				k := &explain.Kernel{State: &kernel.State{}, Unread: map[explain.Part]explain.Unread{}}
				if unread != nil {
					k.Unread[explain.Servers] = Unread(unread)
				}
				return k
			},
		}
		if k, _, why := m.table(t.Context(), running); len(k.Servers) != 1 || why != "" {
			t.Errorf("%s: %d virtual servers, %s", name, len(k.Servers), why)
		}
		if list, err := m.Connections(t.Context(), running, everything); len(list) != 1 || err != nil {
			t.Errorf("%s: connections %v, %v", name, list, err)
		}
		if counts, err := m.CountsOf(t.Context(), running); len(counts) != 1 || err != nil {
			t.Errorf("%s: counts %v, %v", name, counts, err)
		}
		gone := filepath.Join(t.TempDir(), "gone.sock")
		_, _, why := m.table(t.Context(), gone)
		_, ofConnections := m.Connections(t.Context(), gone, everything)
		_, ofCounts := m.CountsOf(t.Context(), gone)
		for _, err := range []error{errors.New(why), ofConnections, ofCounts, errors.New(m.WithoutIPVS(t.Context()))} {
			if err == nil || !strings.Contains(err.Error(), "forwarded connections in its process") || strings.Contains(err.Error(), "modprobe") {
				t.Errorf("%s, without the agent: %v", name, err)
			}
		}
	}
	m := &Machine{LastDataPlane: func() string { return kernel.DataPlaneUserspace }}
	for why, k := range map[string]*explain.Kernel{
		"unreadable": {State: &kernel.State{}, Unread: map[explain.Part]explain.Unread{explain.Servers: {Why: "no permission"}}},
		"serving":    {State: &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{{}: {}}}},
	} {
		if m.leftNothing(k) {
			t.Errorf("%s: the kernel's virtual servers are ignored", why)
		}
	}
}

// serve runs a status socket whose answers complete fills.
func serve(t *testing.T, complete func(*view.View, agent.Query)) (socket string) {
	dir, err := os.MkdirTemp("", "status") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "run", "agent.sock")
	server := status.NewServer(status.Config{
		Path: socket, View: func(context.Context, agent.Query) (*view.View, error) { return &view.View{}, nil }, Complete: complete, Log: zap.NewNop(),
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); server.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	for {
		if _, err := os.Stat(socket); err == nil || t.Context().Err() != nil {
			return socket
		}
	}
}
