package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// answerer tells those who ask what this process knows besides the loop. It is read by requests, and never written after.
type answerer struct {
	started time.Time
	file    string // of the configuration
	current *current
	node    *node
	from    origin
}

// run answers on the status socket until the context ends. Without a socket it returns at once.
func (a *answerer) run(ctx context.Context, loop *agent.Agent, log *zap.Logger) {
	path := a.current.settings().StatusSocket
	if path == "" {
		return
	}
	status.NewServer(status.Config{Path: path, View: loop.View, Complete: a.complete, Log: log}).Run(ctx)
}

func (a *answerer) complete(v *view.View) {
	addresses := v.Node.Addresses
	v.Node = view.Node{
		Name: a.node.host.NodeName, Version: buildVersion().Version, PID: os.Getpid(), Kernel: kernelRelease(),
		IPTables: a.node.iptables, Families: []string{}, UnservedFamilies: []string{}, Started: a.started,
		ConfigFile: a.file, ConfigError: a.current.whyRefused(), Settings: []view.Setting{}, Addresses: addresses,
	}
	for _, family := range a.node.host.Families {
		v.Node.Families = append(v.Node.Families, family.String())
	}
	for _, family := range slices.Sorted(maps.Keys(a.node.notServed)) {
		v.Node.UnservedFamilies = append(v.Node.UnservedFamilies, family.String()+": "+a.node.notServed[family])
	}
	for _, g := range a.current.inForce.Load().Given() {
		v.Node.Settings = append(v.Node.Settings, view.Setting{Name: g.Path, Value: g.Value, From: g.Origin})
	}
	v.Sources = a.sources()
}

// sources are the API server's kinds, or the directory of manifests, of which is not known when it last spoke.
func (a *answerer) sources() []view.Source {
	if a.from.heard == nil {
		return []view.Source{{Name: "manifests in " + a.current.settings().Manifests}}
	}
	heard, failed := a.from.heard(), a.from.failed()
	kinds := map[string]view.Source{}
	for kind, at := range heard {
		kinds[string(kind)] = view.Source{Name: string(kind), LastContact: &at}
	}
	for kind, err := range failed {
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
