package userspace

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// retry is the interval between attempts to open ports. grace is how long open connections that carry data may take to
// end when the agent stops. countInterval is how often the log shows clients that could not be served.
const retry, grace, countInterval = 10 * time.Second, 10 * time.Second, time.Minute

// Host is a machine that serves Services at their addresses.
type Host interface {
	// Node returns the machine's own addresses, and what its networks need.
	Node() (*kernel.Node, error)
	// Keep adds missing addresses, and removes those that an agent has added and that are not wanted. failed contains the addresses that
	// could not be added or removed.
	Keep(wanted map[netip.Addr]struct{}) (failed map[netip.Addr]error, err error)
}

// Config configures the data plane.
type Config struct {
	Compile compile.Config
	// Host is nil if the process listens only at loopback addresses.
	Host   Host
	Limits forward.Limits
	Source agent.Source
	// Changed is called with the ports that have changed: at first with all of them, even if there are none.
	Changed func([]view.ForwardedPort) error
	Log     *zap.Logger
}

// Run serves the source's Services until the context ends.
func Run(ctx context.Context, cfg Config) error {
	l := newLoop(cfg)
	if _, err := l.learnNode(); err != nil {
		return err
	}
	defer l.close()
	again, counting := time.NewTicker(retry), time.NewTicker(countInterval)
	defer again.Stop()
	defer counting.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-cfg.Source.Changed():
			if cfg.Source.Synced() { // I4
				l.follow(cfg.Source.Take())
			}
		case <-again.C:
			l.again()
		case <-counting.C:
			l.count()
		}
	}
}

type loop struct {
	Config
	cluster *compile.Cluster
	ports   ports
	known   *agent.KnownProblems
	printed bool
	counted forward.Counts
	kept    string // the last error of Host
	// addresses are those of the machine, and admission decides which clients a port admits; both are unused without Host.
	addresses []netip.Addr
	admission kernel.Admission
}

func newLoop(cfg Config) *loop {
	l := &loop{
		Config: cfg, cluster: compile.NewCluster(cfg.Compile), known: agent.NewKnownProblems(cfg.Compile.NodeName),
		ports:     ports{forwarder: forward.New(cfg.Limits), services: map[model.ServiceID][]port{}},
		admission: compile.AdmissionOf(cfg.Compile.Families, cfg.Compile.Local.CIDRs),
	}
	addresses := []netip.Addr{}
	for _, f := range cfg.Compile.Families {
		addresses = append(addresses, f.Loopback())
	}
	l.cluster.Learn(compile.Facts{Addresses: addresses, Network: kernel.Network{}, Listeners: kernel.Listeners{}})
	return l
}

// close closes the ports, and then removes the addresses, which are useless without the process.
func (l *loop) close() {
	l.ports.forwarder.Close(grace)
	if l.Host != nil {
		l.keepOnly(nil)
	}
}

// again retries what failed.
func (l *loop) again() {
	if !l.printed {
		return
	}
	wanted := l.ports.failed()
	if l.Host != nil {
		changed, err := l.learnNode()
		if err != nil {
			l.Log.Warn("the node's addresses could not be read; using the previous ones", zap.Error(err))
		}
		if changed { // the machine's own addresses decide which clients are inside
			for id := range l.ports.services {
				wanted[id] = l.frontends(id)
			}
		}
		maps.Copy(wanted, l.compiled())
	}
	if len(wanted) > 0 || l.Host != nil {
		l.serve(wanted, nil)
	}
}

// follow serves changed Services, and the Services that the changes affect.
func (l *loop) follow(changes model.Changes) {
	l.cluster.Learn(compile.Facts{Nodes: changes.Nodes, Services: changes.Services, APIServer: changes.APIServer, Version: changes.Version})
	l.serve(l.compiled(), changes.Problems)
}

// compiled compiles the Services that are affected by what the loop has learned, and returns their frontends.
func (l *loop) compiled() map[model.ServiceID][]frontend {
	compiled := l.cluster.Compile(want.NewTouched())
	for l.cluster.Behind() {
		compiled = append(compiled, l.cluster.Compile(want.NewTouched())...)
	}
	wanted := map[model.ServiceID][]frontend{}
	for _, id := range compiled {
		wanted[id] = l.frontends(id)
	}
	return wanted
}

func (l *loop) serve(wanted map[model.ServiceID][]frontend, unreadable map[model.ObjectRef][]model.Problem) {
	if l.Host != nil {
		l.keepAll(wanted)
	}
	changed := l.ports.update(wanted)
	report := &agent.Report{Problems: map[model.ServiceID][]model.Problem{}, Unreadable: unreadable}
	for id := range wanted {
		report.Problems[id] = slices.Concat(l.cluster.Problems(id), l.ports.problems(id))
	}
	l.known.Update(report)
	for _, change := range report.ProblemChanges {
		for _, p := range change.Added {
			l.Log.Warn(p.String())
		}
	}
	if len(changed) > 0 || !l.printed {
		l.printed = true
		if err := l.Changed(changed); err != nil {
			l.Log.Warn("the ports could not be printed", zap.Error(err))
		}
	}
}

// count logs the clients that could not be served since the last call.
func (l *loop) count() {
	now, before := l.ports.forwarder.Counts(), l.counted
	if l.counted = now; now.Refused == before.Refused && now.Replaced == before.Replaced && now.Failed == before.Failed {
		return
	}
	l.Log.Warn("limits were reached, or endpoints did not answer", zap.Uint64("refused_connections", now.Refused-before.Refused),
		zap.Uint64("replaced_udp_flows", now.Replaced-before.Replaced), zap.Uint64("failed", now.Failed-before.Failed),
		zap.Duration("interval", countInterval))
}
