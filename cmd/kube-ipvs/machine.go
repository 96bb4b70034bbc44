package main

import (
	"context"
	"net/netip"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// machine is where commands run. Tests give them another one.
type machine struct {
	// check says what is missing, open opens the kernel for an agent, or for what works like one.
	check func(context.Context, preflight.Needs) []preflight.Finding
	open  func(context.Context, *config.Settings, *zap.Logger) (*openKernel, error)
	// lock takes the node lock, which keeps agents from starting, until release is called.
	lock func() (release func(), err error)
	// table, connections and kernel read for somebody who looks. What cannot be read of kernel is named in it.
	table       func(context.Context) (*ipvsTable, error)
	connections func() ([]kernel.Connection, error)
	kernel      func(context.Context, lookedAt) *explain.Kernel
	interfaces  func() ([]string, error)
	release     func() string
	modules     func() []string
	// proxyMode is where kube-proxy tells its mode.
	proxyMode string
}

func thisMachine() *machine {
	return &machine{
		check: preflight.Check, open: openThisKernel, lock: takeNodeLock, table: readTable, connections: ipvs.Connections, kernel: readKernel,
		interfaces: interfaceNames, release: kernelRelease, modules: ipvsModules, proxyMode: proxyModeURL,
	}
}

func takeNodeLock() (release func(), err error) {
	lock, err := nodelock.TryAcquire()
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Release() }, nil
}

// nodeKernel is a kernel as the agent uses it, and what commands ask of it besides.
type nodeKernel interface {
	agent.Kernel
	Network(context.Context) (map[netip.Addr]string, error)
	Watch(ctx context.Context, disturbed, moved func())
	Close() error
}
