package main

import (
	"context"
	"time"

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
	// proxyModes are the URLs of kube-proxy's mode.
	proxyModes []string
	// proxyPatience is how long kube-proxy may take to respond.
	proxyPatience time.Duration
	// findProcess returns the ID of a process with this name; empty if there is none.
	findProcess func(name string) (id string)
}

func thisMachine() *machine {
	return &machine{
		Machine: daemon.ThisMachine(), lock: takeNodeLock, table: readTable, connections: readConnections, kernel: readKernel,
		interfaces: interfaceNames, release: daemon.KernelRelease, modules: ipvsModules, proxyModes: proxyModeURLs, proxyPatience: proxyPatience, findProcess: findProcess,
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
