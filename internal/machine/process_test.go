package machine

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
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
		readProcess(t.Context(), k, Look{Parts: one.parts, Socket: socket})
		if ask := <-asked; ask != (agent.Query{Forwarded: true, Connections: one.want}) || len(k.Servers) != 1 {
			t.Errorf("%s asks %+v; %d virtual servers, unread: %v", name, ask, len(k.Servers), k.Unread)
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
