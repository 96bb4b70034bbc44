package main

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
)

// machine is the machine that commands run on. Tests replace it.
type machine struct {
	daemon.Machine
	// lock takes the node lock, which keeps agents from starting, until release is called.
	lock func() (release func(), err error)
	// table, connections and kernel read the kernel for inspection. kernel records read errors per part in its result.
	table       func(context.Context) (*ipvsTable, error)
	connections func() ([]kernel.Connection, error)
	kernel      func(context.Context, lookedAt) *explain.Kernel
	interfaces  func() ([]string, error)
	release     func() string
	modules     func() []string
	// host is the machine that doctor examines.
	host func(context.Context) doctor.Host
	// proxyMode is the URL of kube-proxy's mode.
	proxyMode string
}

func thisMachine() *machine {
	return &machine{
		Machine: daemon.ThisMachine(), lock: takeNodeLock, table: readTable, connections: readConnections, kernel: readKernel,
		interfaces: interfaceNames, release: daemon.KernelRelease, modules: ipvsModules, proxyMode: proxyModeURL,
		host: func(ctx context.Context) doctor.Host { return thisHost{ctx} },
	}
}

func takeNodeLock() (release func(), err error) {
	lock, err := nodelock.TryAcquire()
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Release() }, nil
}
