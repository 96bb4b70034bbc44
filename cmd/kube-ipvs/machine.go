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
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/solo"
)

// machine is where commands run. Tests give them another one.
type machine struct {
	// check says what is missing, open opens the kernel for an agent, or for what works like one.
	check func(context.Context, preflight.Needs) []preflight.Finding
	open  func(context.Context, *config.Settings, *zap.Logger) (*openKernel, error)
	// take makes this process the only one that works on the machine, until it leaves.
	take func() (leave func(), err error)
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
		check: preflight.Check, open: openThisKernel, take: takePlace, table: readTable, connections: ipvs.Connections, kernel: readKernel,
		interfaces: interfaceNames, release: kernelRelease, modules: ipvsModules, proxyMode: proxyModeURL,
	}
}

func takePlace() (leave func(), err error) {
	place, err := solo.Take()
	if err != nil {
		return nil, err
	}
	return func() { _ = place.Leave() }, nil
}

// nodeKernel is a kernel as the agent uses it, and what commands ask of it besides.
type nodeKernel interface {
	agent.Kernel
	Network(context.Context) (map[netip.Addr]string, error)
	Watch(ctx context.Context, disturbed, moved func())
	Close() error
}
