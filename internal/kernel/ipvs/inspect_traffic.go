package ipvs

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Traffic returns the traffic of every virtual server except firewall-mark servers. It requests one dump and, if endpoints is true, another
// dump for each virtual server.
func (b *Backend) Traffic(ctx context.Context, endpoints bool) (map[kernel.ServerKey]kernel.Traffic, error) {
	if err := b.resolve(ctx); err != nil {
		return nil, fmt.Errorf("count traffic: %w", err)
	}
	all := map[kernel.ServerKey]kernel.Traffic{}
	add := func(service kernel.TableServer, err error) error {
		if err == nil && service.Key.Mark == noMark {
			all[kernel.ServerKey{Addr: service.Key.Addr, Protocol: service.Key.Protocol}] = kernel.Traffic{Counters: service.Stats, Endpoints: byAddress(service.Destinations)}
		}
		return err
	}
	if !endpoints {
		err := b.conn.Walk(ctx, b.request(cmdGetService, nil), func(p []byte) error { return add(decodeTableService(p)) })
		if err != nil {
			return nil, fmt.Errorf("count traffic: %w", err)
		}
		return all, nil
	}
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetService, nil)) // kept in memory, because a connection runs one dump at a time
	if err != nil {
		return nil, fmt.Errorf("count traffic: dump virtual servers: %w", err)
	}
	for _, p := range payloads {
		if err := add(b.inspectService(ctx, p)); err != nil {
			return nil, fmt.Errorf("count traffic: %w", err)
		}
	}
	return all, nil
}

func byAddress(destinations []kernel.TableDestination) map[netip.AddrPort]kernel.TableDestination {
	if destinations == nil {
		return nil
	}
	all := make(map[netip.AddrPort]kernel.TableDestination, len(destinations))
	for _, d := range destinations {
		all[d.Addr] = d
	}
	return all
}
