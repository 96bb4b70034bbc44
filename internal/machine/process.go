package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockets"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// errInProcess means that the kernel has no state to read: an agent in user space serves this node, or did until it was killed.
var errInProcess = errors.New("kube-ipvs0 belongs to an agent in user space, whose process forwards connections and keeps nothing else in the kernel but routes")

// errProcessEnded means that kube-ipvs0 is gone, too.
var errProcessEnded = errors.New("the last agent of this node forwarded connections in its process (--data-plane=userspace), so it has left nothing; " +
	"if it does not run any more, no Service is served until an agent starts again")

func inProcess() bool {
	exists, err := sockets.Exists()
	return err == nil && exists
}

// InProcess returns an error if an agent in user space serves this node, for commands that have nothing to read then.
func (m *Machine) InProcess() error {
	switch exists, err := m.Link.Exists(); {
	case err != nil:
		return fmt.Errorf("look for kube-ipvs0 of an agent in user space: %w", err)
	case exists:
		return errInProcess
	}
	return nil
}

// readProcess reads what an agent in user space knows instead of the kernel.
func readProcess(ctx context.Context, k *explain.Kernel, at Look) {
	unread := func(why error, parts ...explain.Part) {
		for _, part := range parts {
			if at.reads(part) {
				k.Unread[part] = explain.Unread{Why: why.Error()}
			}
		}
	}
	unread(errInProcess, explain.Sets, explain.Rules)
	if !at.reads(explain.Servers) && !at.reads(explain.Connections) {
		return
	}
	f, err := askProcess(ctx, at.Socket, at.reads(explain.Connections))
	if err != nil {
		unread(err, explain.Servers, explain.Connections)
		return
	}
	k.Servers, _ = f.Observed()
	k.Connections = f.Tracked()
}

// askProcess asks an agent in user space what it forwards. There may be many connections, so it asks for them only if they are needed. If the
// socket is empty, it does not ask.
func askProcess(ctx context.Context, socket string, connections bool) (*view.Forwarded, error) {
	if socket == "" {
		return nil, errInProcess
	}
	v, silence, err := status.Ask(ctx, socket, agent.Query{Forwarded: true, Connections: connections})
	switch {
	case err != nil:
		return nil, err
	case v == nil:
		return nil, fmt.Errorf("%w; only the agent knows its connections: %w; if it does not run any more, `kube-ipvs cleanup` removes kube-ipvs0", errInProcess, silence)
	case v.Forwarded == nil:
		return nil, fmt.Errorf("%w; the agent on %s has another data plane (%s)", errInProcess, socket, v.Node.Mode)
	}
	return v.Forwarded, nil
}
