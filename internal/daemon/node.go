//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/localports"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Machine is the daemon's interface to the operating system. Tests replace it.
type Machine struct {
	// Check probes the machine and chooses its mode. Open opens the kernel in that mode, and returns the source ports
	// of the node's own connections.
	Check func(context.Context, preflight.Needs) preflight.Result
	Open  func(*config.Settings, preflight.Choice, *zap.Logger) (Kernel, kernel.Ports, error)
	// HasIPVS reports whether IPVS is in the kernel now. It does not load the module.
	HasIPVS func() bool
	// Lock waits for the node lock. While another process holds the lock, Lock calls waiting with an error that
	// describes that process.
	Lock           func(ctx context.Context, waiting func(held error)) (*nodelock.Lock, error)
	ProtectFromOOM func(adjustment int, log *zap.Logger)
	// SourcePorts gives access to the sysctls for the source ports of the node's own connections.
	SourcePorts localports.Host
}

// ThisMachine is the machine that the process runs on.
func ThisMachine() Machine {
	return Machine{
		Check: preflight.Check, Open: openThisKernel, HasIPVS: live.IPVSLoaded, Lock: nodelock.Acquire, ProtectFromOOM: protectFromOOM,
		SourcePorts: thisHost(),
	}
}

// Kernel gives the agent and the commands access to a node's kernel.
type Kernel interface {
	agent.Kernel
	Watch(ctx context.Context, disturbed, moved func())
	// LimitWaits limits the time that a call waits for the iptables lock.
	LimitWaits()
	// PrepareMove copies virtual servers from nftables to IPVS, and counts the clients whose affinity the move will lose. After an error, it
	// removes the copies; those that it cannot remove stay in copies, for the next attempt.
	PrepareMove(ctx context.Context, copies map[kernel.ServerKey]struct{}) (clients int, err error)
	Close() error
}

// Node is this machine, opened for the run, plan or cleanup command.
type Node struct {
	preflight.Choice
	Kernel Kernel
	host   compile.Host
	// watching ends after stopWatching is called; nil if the kernel is not watched.
	watching     sync.WaitGroup
	stopWatching context.CancelFunc
}

// errUnfit means that the machine lacks something that every Service needs.
var errUnfit = errors.New("this node cannot serve Services; see above")

// openNode opens this machine if it can serve Services. It changes nothing.
func openNode(ctx context.Context, m Machine, settings *config.Settings, log *zap.Logger) (*Node, error) {
	found, err := preflightNode(ctx, m, settings, log)
	if err != nil {
		return nil, err
	}
	return m.open(settings, found, log)
}

// preflightNode logs what the machine lacks. The error is errUnfit if it cannot serve Services.
func preflightNode(ctx context.Context, m Machine, settings *config.Settings, log *zap.Logger) (preflight.Result, error) {
	found := m.Preflight(ctx, settings)
	logFindings(found.Findings, log)
	return found, Fatal(found.Findings)
}

// errNoKernel is the error of commands that read or write the kernel.
var errNoKernel = errors.New("with --data-plane=userspace, the agent has no rules or virtual servers in the kernel; " +
	"kube-ipvs plan -f shows what it would serve; --data-plane=auto examines objects of the other data planes")

// OpenAnyNode opens this machine, whether or not it can serve Services.
func OpenAnyNode(ctx context.Context, m Machine, settings *config.Settings, log *zap.Logger) (*Node, error) {
	if settings.DataPlane == kernel.DataPlaneUserspace {
		return nil, errNoKernel
	}
	return m.open(settings, m.Preflight(ctx, settings), log)
}

// Preflight checks the machine for everything that the agent needs with these settings.
func (m Machine) Preflight(ctx context.Context, settings *config.Settings) preflight.Result {
	cfg := compile.Config{Host: compile.Host{Families: inet.Families}, Settings: settings.Compile()}
	return m.Check(ctx, preflight.Needs{
		Schedulers: slices.Compact([]string{cfg.Scheduler, model.LastResort}), Families: cfg.Families,
		DataPlane: settings.DataPlane, InProcess: settings.InProcess(), Rules: settings.Rules, AcceptServices: cfg.AcceptServices,
		Objects: func(mode kernel.Mode) preflight.Objects {
			cfg.Mode = mode
			base := compile.Base(cfg)
			objects := preflight.Objects{Sysctls: base.Sysctls, Rulesets: base.Rulesets}
			for _, set := range base.Sets {
				objects.Sets = append(objects.Sets, set.Set)
			}
			return objects
		},
	})
}

// Fatal returns errUnfit if the severity of a finding is Broken.
func Fatal(found []finding.Finding) error {
	if slices.ContainsFunc(found, func(f finding.Finding) bool { return f.Severity == finding.Broken }) {
		return errUnfit
	}
	return nil
}

func (m Machine) open(settings *config.Settings, found preflight.Result, log *zap.Logger) (*Node, error) {
	name, err := settings.Hostname()
	if err != nil {
		return nil, err
	}
	if found.Mode == kernel.Userspace && !settings.InProcess() {
		return nil, errNoKernel
	}
	if found.NoRules != nil {
		return nil, found.NoRules
	}
	opened, ports, err := m.Open(settings, found.Choice, log)
	if err != nil {
		return nil, err
	}
	host := compile.Host{NodeName: name, Families: found.Families, Mode: found.Mode, LocalPorts: ports}
	return &Node{Choice: found.Choice, Kernel: opened, host: host}, nil
}

// Config returns compile's configuration for this node.
func (n *Node) Config(settings *config.Settings) compile.Config {
	return compile.Config{Host: n.host, Settings: settings.Compile()}
}

func openThisKernel(settings *config.Settings, chosen preflight.Choice, log *zap.Logger) (Kernel, kernel.Ports, error) {
	for family, why := range chosen.Without {
		log.Warn("this node does not serve "+family.String()+" Services", zap.Error(why))
	}
	open := openLive
	if chosen.Mode == kernel.Userspace {
		open = openSockets
	}
	k, err := open(settings, chosen, log)
	if err != nil {
		return nil, kernel.Ports{}, err
	}
	ports, err := live.LocalPorts()
	if err != nil {
		log.Warn("the ports of this node's own connections are unknown; the kernel's defaults are assumed", zap.Error(err))
	}
	return k, ports, nil
}

func openLive(settings *config.Settings, chosen preflight.Choice, log *zap.Logger) (Kernel, error) {
	if chosen.Mode.NFTablesBalances() {
		log.Warn("nftables balances connections: at random by weight, without schedulers, connection limits or counts",
			zap.String("because", chosen.WhyDataPlane))
	}
	log.Info("keeping sets and rules in "+chosen.RulesName(), zap.String("because", chosen.WhyRules), zap.String("version", chosen.Version),
		zap.Stringers("families", chosen.Families))
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix,
		Chains:    compile.Chains,
		Sysctls:   sysctlNames(settings, chosen.Mode),
		Variant:   chosen.Variant,
		Families:  chosen.Families,
		Unsure:    chosen.Unsure,
		Mode:      chosen.Mode,
		Records:   records(chosen.Families),
	})
	if err != nil {
		return nil, fmt.Errorf("open this node's kernel: %w", err)
	}
	return k, nil
}

func records(families []inet.Family) (all []live.Records) {
	base := compile.Base(compile.Config{Host: compile.Host{Families: families}})
	for _, f := range families {
		r := live.Records{Ledger: base.Ledger[f], Seal: want.Seal(base.Ledger, f)}
		for _, set := range base.Sets {
			if set.VIPs && set.Family == f {
				r.Addresses = set.Name
			}
		}
		all = append(all, r)
	}
	return all
}

// sysctlNames returns the names of all sysctls that the agent sets now or might set after a reload, because the kernel reader receives the names only
// once.
func sysctlNames(settings *config.Settings, mode kernel.Mode) []string {
	all := *settings
	all.StrictARP, all.TrafficCounters = true, false
	all.Conntrack = config.Conntrack{
		MaxPerCore: 1, TCPEstablished: time.Second, TCPCloseWait: time.Second, UDP: time.Second, UDPStream: time.Second, TCPBeLiberal: true,
	}
	var names []string
	for _, s := range compile.Base(compile.Config{Host: compile.Host{Mode: mode}, Settings: all.Compile()}).Sysctls {
		names = append(names, s.Name)
	}
	return names
}

// watch watches the kernel until the context ends or the node is closed.
func (n *Node) watch(ctx context.Context, disturbed, moved func()) {
	ctx, n.stopWatching = context.WithCancel(ctx)
	n.watching.Go(func() { n.Kernel.Watch(ctx, disturbed, moved) })
}

// Close closes the kernel's sockets.
func (n *Node) Close(log *zap.Logger) {
	if n.stopWatching != nil {
		n.stopWatching()
	}
	n.watching.Wait()
	if err := n.Kernel.Close(); err != nil {
		log.Warn("closing kernel sockets failed", zap.Error(err))
	}
}
