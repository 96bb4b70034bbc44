//go:build linux

package daemon

import (
	"context"
	"net/netip"
	"sync"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// traffic reads the counters of virtual servers for metrics. It has its own socket, so scrapes do not wait for the
// agent's loop.
type traffic struct {
	nodes *nodes

	mu      sync.Mutex
	servers *ipvs.Backend // nil until IPVS balances; nftables has no counters
}

func openTraffic(settings *config.Settings, nodes *nodes) (*traffic, error) {
	t := &traffic{nodes: nodes}
	if settings.MetricsServicePorts == 0 && settings.MetricsEndpoints == 0 {
		return t, nil
	}
	_, err := t.open()
	return t, err
}

// open returns nil until IPVS balances.
func (t *traffic) open() (_ *ipvs.Backend, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.servers == nil && t.nodes.current().Mode.IPVSBalances() {
		t.servers, err = ipvs.New()
	}
	return t.servers, err
}

func (t *traffic) close(log *zap.Logger) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.servers == nil {
		return
	}
	if err := t.servers.Close(); err != nil {
		log.Warn("closing the socket for traffic counters failed", zap.Error(err))
	}
}

func (t *traffic) telemetry(settings *config.Settings) telemetry.Traffic {
	if settings.MetricsServicePorts == 0 && settings.MetricsEndpoints == 0 {
		return telemetry.Traffic{}
	}
	return telemetry.Traffic{Read: t.read, ServicePorts: settings.MetricsServicePorts, Endpoints: settings.MetricsEndpoints}
}

func (t *traffic) read(ctx context.Context, endpoints bool) (map[kernel.ServerKey]telemetry.Counted, error) {
	all, err := t.readAll(ctx, endpoints)
	if err != nil {
		return nil, err
	}
	counted := make(map[kernel.ServerKey]telemetry.Counted, len(all))
	for key, server := range all {
		c := telemetry.Counted{Counters: counters(server.Counters)}
		if len(server.Endpoints) > 0 {
			c.Endpoints = make(map[netip.AddrPort]telemetry.CountedEndpoint, len(server.Endpoints))
		}
		for addr, d := range server.Endpoints {
			c.Endpoints[addr] = telemetry.CountedEndpoint{Counters: counters(d.Stats), Active: uint64(d.Active)}
		}
		counted[key] = c
	}
	return counted, nil
}

func (t *traffic) readAll(ctx context.Context, endpoints bool) (map[kernel.ServerKey]kernel.Traffic, error) {
	if k, is := t.nodes.current().Kernel.(inspectable); is {
		_, all := view.ForwardedOf(k.Traffic(), nil).Observed()
		return all, nil
	}
	servers, err := t.open()
	if err != nil || servers == nil {
		return nil, err
	}
	return servers.Traffic(ctx, endpoints)
}

func counters(c kernel.Counters) telemetry.Counters {
	return telemetry.Counters{
		Connections: c.Connections, PacketsIn: c.InPackets, PacketsOut: c.OutPackets, BytesIn: c.InBytes, BytesOut: c.OutBytes,
	}
}
