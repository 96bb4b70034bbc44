package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
)

// node is this machine as the agent uses it: its kernel, and what compiling for it needs to know.
type node struct {
	kernel  *live.Kernel
	compile compile.Config
}

// openNode looks at this machine and opens its kernel. It changes nothing.
func openNode(ctx context.Context, flags *config.Flags, log *zap.Logger) (*node, error) {
	found, err := check(ctx, flags)
	if err != nil {
		return nil, err
	}
	if err := logFindings(log, found); err != nil {
		return nil, err
	}
	tables, err := iptables.Detect(ctx)
	if err != nil {
		return nil, fmt.Errorf("find this node's iptables: %w", err)
	}
	log.Info("using iptables", zap.String("variant", string(tables.Variant)), zap.String("because", tables.Why),
		zap.String("version", tables.Version), zap.Stringers("families", tables.Families))
	for family, why := range tables.Without {
		log.Warn("this node does not serve "+family.String()+" Services", zap.Error(why))
	}
	cfg, err := flags.Compile(tables.Families)
	if err != nil {
		return nil, err
	}
	cfg.RandomFully = tables.RandomFully
	if cfg.NodeAddresses, err = netdev.NodeAddresses(); err != nil {
		return nil, err
	}
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
	return &node{kernel: k, compile: cfg}, nil
}

func (n *node) close(log *zap.Logger) {
	if err := n.kernel.Close(); err != nil {
		log.Warn("close the kernel's sockets", zap.Error(err))
	}
}
