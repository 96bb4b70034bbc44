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

// node is this machine as the agent uses it: its kernel, and what compiling for it needs to know.
type node struct {
	kernel  nodeKernel
	compile compile.Config
	// notServed says why a family is not served.
	notServed map[inet.Family]string
	// iptables says which variant is used, and why.
	iptables string
}

// openNode looks at this machine and opens its kernel. It changes nothing.
func openNode(ctx context.Context, m *machine, settings *config.Settings, log *zap.Logger) (*node, error) {
	found, err := check(ctx, m, settings)
	if err != nil {
		return nil, err
	}
	if err := logFindings(log, found); err != nil {
		return nil, err
	}
	return m.open(ctx, settings, log)
}

// openKernel opens the machine's kernel, whether or not it can serve Services.
func openKernel(ctx context.Context, settings *config.Settings, log *zap.Logger) (*node, error) {
	tables, err := iptables.Detect(ctx)
	if err != nil {
		return nil, fmt.Errorf("find this node's iptables: %w", err)
	}
	log.Info("using iptables", zap.String("variant", string(tables.Variant)), zap.String("because", tables.Why),
		zap.String("version", tables.Version), zap.Stringers("families", tables.Families))
	for family, why := range tables.Without {
		log.Warn("this node does not serve "+family.String()+" Services", zap.Error(why))
	}
	cfg, err := settings.Compile(tables.Families)
	if err != nil {
		return nil, err
	}
	cfg.RandomFully = tables.RandomFully
	var sysctls []string
	for _, s := range compile.Base(cfg).Sysctls {
		sysctls = append(sysctls, s.Name)
	}
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix,
		Chains:    compile.Chains,
		Sysctls:   sysctls,
		Variant:   tables.Variant,
		Families:  tables.Families,
	})
	if err != nil {
		return nil, fmt.Errorf("open this node's kernel: %w", err)
	}
	return &node{
		kernel: k, compile: cfg, notServed: reasons(tables.Without),
		iptables: fmt.Sprintf("%s %s (%s)", tables.Variant, tables.Version, tables.Why),
	}, nil
}

func reasons(errs map[inet.Family]error) map[inet.Family]string {
	texts := map[inet.Family]string{}
	for family, err := range errs {
		texts[family] = err.Error()
	}
	return texts
}

// reconfigured is what other settings mean for this node.
func (n *node) reconfigured(settings *config.Settings) (compile.Config, error) {
	cfg, err := settings.Compile(n.compile.Families)
	cfg.RandomFully, cfg.Reserved = n.compile.RandomFully, n.compile.Reserved
	return cfg, err
}

func (n *node) close(log *zap.Logger) {
	if err := n.kernel.Close(); err != nil {
		log.Warn("close the kernel's sockets", zap.Error(err))
	}
}
