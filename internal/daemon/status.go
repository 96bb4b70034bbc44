//go:build linux

package daemon

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// statusServer adds information from outside the loop to the views of the status socket. It is immutable, so concurrent
// requests can read it.
type statusServer struct {
	version string
	started time.Time
	file    string // the configuration file
	current *current
	nodes   *nodes
	source  *Source
	// problems returns the problems of this node that are not in the loop's views.
	problems func() []model.Problem
	snapshot *snapshot
}

func (a *statusServer) run(ctx context.Context, loop *agent.Agent, log *zap.Logger) {
	path := a.current.settings().StatusSocket
	if path == "" {
		return
	}
	status.NewServer(status.Config{Path: path, View: viewOf(loop.View), Complete: a.complete, Log: log}).Run(ctx)
}

// viewOf asks the loop, except about what the agent's process forwards. The table and the forwarder have their own locks, and the node never
// moves to another data plane, so the answer waits for at most one batch of the loop's operations. A command joins it with the loop's view from another
// moment in any case.
func viewOf(loop func(context.Context, agent.Query) (*view.View, error)) func(context.Context, agent.Query) (*view.View, error) {
	return func(ctx context.Context, ask agent.Query) (*view.View, error) {
		if ask.WithoutLoop() {
			return &view.View{}, nil
		}
		return loop(ctx, ask)
	}
}

// inspectable is the kernel of an agent in user space: only its process knows what it forwards.
type inspectable interface {
	Traffic() []kernel.TableServer
	Connections(now time.Time) []kernel.Connection
}

func forwarded(k inspectable, ask agent.Query) *view.Forwarded {
	if ask.Connections {
		return view.ForwardedOf(k.Traffic(), k.Connections(time.Now()))
	}
	return view.ForwardedOf(k.Traffic(), nil)
}

func (a *statusServer) complete(v *view.View, ask agent.Query) {
	loop, node := v.Node, a.nodes.current()
	if k, is := node.Kernel.(inspectable); is && ask.Forwarded {
		v.Forwarded = forwarded(k, ask)
	}
	v.Node = view.Node{
		Name: node.host.NodeName, Version: a.version, PID: os.Getpid(), Kernel: KernelRelease(), NetworkNamespace: NetworkNamespace(),
		Mode: node.Mode, DataPlane: node.DataPlane(), Rules: node.Rules(), Families: []string{}, UnservedFamilies: []string{}, Started: a.started,
		ConfigFile: a.file, ConfigError: a.current.fileError(), Settings: []view.Setting{},
		Addresses: loop.Addresses, LoopbackAddresses: loop.LoopbackAddresses, ReservesNodePorts: a.current.settings().ReserveNodePorts,
	}
	for _, family := range node.host.Families {
		v.Node.Families = append(v.Node.Families, family.String())
	}
	for _, family := range slices.Sorted(maps.Keys(node.Without)) {
		v.Node.UnservedFamilies = append(v.Node.UnservedFamilies, family.String()+": "+node.Without[family].Error())
	}
	for _, g := range a.current.inForce.Load().Given() {
		v.Node.Settings = append(v.Node.Settings, view.Setting{Name: g.Path, Value: g.Value, From: g.Origin})
	}
	v.Sources, v.Snapshot = a.sources(), a.snapshot.view()
	v.AddNodeProblems(a.problems())
}

// sources returns one source for each kind of object from the API server. If the source is a directory of manifests, it
// returns only that, without a last contact.
func (a *statusServer) sources() []view.Source {
	if a.source.lastContact == nil {
		return []view.Source{{Name: "manifests in " + a.current.settings().Manifests}}
	}
	heard, errs := a.source.lastContact(), a.source.lastErrors()
	kinds := map[string]view.Source{}
	for kind, at := range heard {
		kinds[string(kind)] = view.Source{Name: string(kind), LastContact: &at}
	}
	for kind, err := range errs {
		source := kinds[string(kind)]
		source.Name, source.Error = string(kind), fmt.Sprint(err)
		kinds[string(kind)] = source
	}
	all := []view.Source{}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		all = append(all, kinds[name])
	}
	return all
}

// NetworkNamespace identifies the network namespace of this process, or returns "" if it is unknown.
func NetworkNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/net")
	return name
}

// KernelRelease returns the output of uname -r, or an empty string if it is unknown.
func KernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
