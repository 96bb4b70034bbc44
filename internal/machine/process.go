package machine

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockets"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// errInProcess means that the kernel has no state to read: an agent in user space serves this node, or did until it was killed.
var errInProcess = errors.New("kube-ipvs0 belongs to an agent in user space, whose process forwards connections and keeps nothing else in the kernel but routes")

// errProcessEnded means that kube-ipvs0 is gone, too.
var errProcessEnded = errors.New("the last agent of this node forwarded connections in its process (--data-plane=userspace), so it has left nothing; " +
	"if it has stopped, no Service is served until an agent starts again")

// leftNothing reports whether the node's agent is one in user space, although its kube-ipvs0 does not exist: it starts, is about to repair the
// device, or has ended. The kernel's virtual servers then say nothing about it.
func (m *Machine) leftNothing(k *explain.Kernel) bool {
	servers, unread := k.Unread[explain.Servers]
	return k.Mode != kernel.Userspace && len(k.Servers) == 0 && (!unread || servers.Absent) && m.LastDataPlane() == kernel.DataPlaneUserspace
}

// kernelOrProcess reads the kernel, or what an agent in user space knows instead.
func (m *Machine) kernelOrProcess(ctx context.Context, at Look) *explain.Kernel {
	k := m.Kernel(ctx, at)
	if m.leftNothing(k) {
		k = &explain.Kernel{State: &kernel.State{}, Mode: kernel.Userspace, Unread: map[explain.Part]explain.Unread{}, Namespace: k.Namespace}
		readProcess(ctx, k, at, errProcessEnded)
	}
	return k
}

// CountsOf reads the traffic counters of virtual servers from the kernel, or from an agent in user space.
func (m *Machine) CountsOf(ctx context.Context, socket string) (inspect.Counts, error) {
	counts, err := m.Counts(ctx, socket)
	if len(counts) == 0 && (err == nil || errors.Is(err, kernel.ErrUnavailable)) && m.LastDataPlane() == kernel.DataPlaneUserspace {
		return countsOfProcess(ctx, socket, errProcessEnded)
	}
	return counts, err
}

func countsOfProcess(ctx context.Context, socket string, why error) (inspect.Counts, error) {
	f, err := askProcess(ctx, socket, false, why)
	if err != nil {
		return nil, err
	}
	_, counts := f.Observed()
	return counts, nil
}

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

// readProcess reads what an agent in user space knows instead of the kernel. If it does not answer, why says what that means.
func readProcess(ctx context.Context, k *explain.Kernel, at Look, why error) {
	unread := func(why error, parts ...explain.Part) {
		for _, part := range parts {
			if at.reads(part) {
				k.Unread[part] = explain.Unread{Why: why.Error()}
			}
		}
	}
	unread(why, explain.Sets, explain.Rules)
	if !at.reads(explain.Servers) && !at.reads(explain.Connections) {
		return
	}
	f, err := askProcess(ctx, at.Socket, at.reads(explain.Connections), why)
	if err != nil {
		unread(err, explain.Servers, explain.Connections)
		return
	}
	k.Servers, _ = f.Observed()
	k.Connections = f.Tracked()
}

// askProcess asks an agent in user space what it forwards. There may be many connections, so it asks for them only if they are needed. If the
// socket is empty, it does not ask.
func askProcess(ctx context.Context, socket string, connections bool, why error) (*view.Forwarded, error) {
	if socket == "" {
		return nil, why
	}
	v, silence, err := status.Ask(ctx, socket, agent.Query{Forwarded: true, Connections: connections})
	switch {
	case err != nil:
		return nil, err
	case v == nil:
		remedy := ""
		if errors.Is(why, errInProcess) {
			remedy = "; if it has stopped, `kube-ipvs cleanup` removes kube-ipvs0"
		}
		return nil, fmt.Errorf("%w; only the agent knows its connections: %w%s", why, silence, remedy)
	case v.Forwarded == nil:
		return nil, fmt.Errorf("%w; the agent on %s has another data plane (%s)", why, socket, v.Node.Mode)
	}
	return v.Forwarded, nil
}
