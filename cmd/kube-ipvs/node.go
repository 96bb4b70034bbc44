package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
)

// node is this machine as run, plan and cleanup use it: its kernel, and what they need to know of it.
type node struct {
	openKernel
	host compile.Host
}

// openKernel is a machine's kernel, and what opening it found out.
type openKernel struct {
	kernel      nodeKernel
	families    []inet.Family
	randomFully bool
	// notServed says why a family is not served.
	notServed map[inet.Family]string
	// iptables says which variant is used, and why.
	iptables string
}

// openNode checks that this machine can serve Services, and opens it. It changes nothing.
func openNode(ctx context.Context, m *machine, settings *config.Settings, log *zap.Logger) (*node, error) {
	if err := logFindings(log, check(ctx, m, settings)); err != nil {
		return nil, err
	}
	return newNode(ctx, m, settings, log)
}

// newNode opens this machine, whether or not it can serve Services.
func newNode(ctx context.Context, m *machine, settings *config.Settings, log *zap.Logger) (*node, error) {
	name, err := settings.Hostname()
	if err != nil {
		return nil, err
	}
	opened, err := m.open(ctx, settings, log)
	if err != nil {
		return nil, err
	}
	network, err := opened.kernel.Network(ctx)
	if err != nil {
		log.Warn("could not read gateway and broadcast addresses; Services can claim them until the agent restarts", zap.Error(err))
	}
	host := compile.Host{NodeName: name, Families: opened.families, RandomFully: opened.randomFully, Network: network}
	return &node{*opened, host}, nil
}

// openSource opens the source of Services for this node, and keeps Services from claiming the address of the API server.
func (n *node) openSource(settings *config.Settings, log *zap.Logger) (origin, error) {
	from, err := openSource(settings, n.host.NodeName, log)
	n.host.APIServer = from.apiServer()
	return from, err
}

// config is what compiling for this node needs to know.
func (n *node) config(settings *config.Settings) compile.Config {
	return compile.Config{Host: n.host, Settings: settings.Compile()}
}

// openThisKernel opens the kernel of the machine that the process runs on.
func openThisKernel(ctx context.Context, settings *config.Settings, log *zap.Logger) (*openKernel, error) {
	tables, err := iptables.Detect(ctx)
	if err != nil {
		return nil, fmt.Errorf("find this node's iptables: %w", err)
	}
	log.Info("using iptables", zap.String("variant", string(tables.Variant)), zap.String("because", tables.Why),
		zap.String("version", tables.Version), zap.Stringers("families", tables.Families))
	for family, why := range tables.Without {
		log.Warn("this node does not serve "+family.String()+" Services", zap.Error(why))
	}
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix,
		Chains:    compile.Chains,
		Sysctls:   sysctlNames(settings),
		Variant:   tables.Variant,
		Families:  tables.Families,
	})
	if err != nil {
		return nil, fmt.Errorf("open this node's kernel: %w", err)
	}
	return &openKernel{
		kernel: k, families: tables.Families, randomFully: tables.RandomFully, notServed: reasons(tables.Without),
		iptables: fmt.Sprintf("%s %s (%s)", tables.Variant, tables.Version, tables.Why),
	}, nil
}

// sysctlNames are those that the agent sets.
func sysctlNames(settings *config.Settings) []string {
	var names []string
	for _, s := range compile.Base(compile.Config{Settings: settings.Compile()}).Sysctls {
		names = append(names, s.Name)
	}
	return names
}

func reasons(errs map[inet.Family]error) map[inet.Family]string {
	texts := map[inet.Family]string{}
	for family, err := range errs {
		texts[family] = err.Error()
	}
	return texts
}

func (n *node) close(log *zap.Logger) {
	if err := n.kernel.Close(); err != nil {
		log.Warn("close the kernel's sockets", zap.Error(err))
	}
}
