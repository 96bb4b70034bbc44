package live

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockopt"
)

type servers interface {
	applier
	Read(context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error)
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	Timeouts(context.Context) (kernel.Timeouts, error)
	Schedulers(context.Context, []string) map[string]bool
	Stats() nlbatch.Stats
	Close() error
}

type readServers func(context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error)

// openServers also returns a function for callers that list virtual servers repeatedly.
func openServers(cfg Config) (servers, readServers, error) {
	if cfg.Mode.NFTablesBalances() {
		b, err := balance.New(cfg.Families)
		if err != nil {
			return nil, nil, err
		}
		return b, b.Read, nil
	}
	b, err := ipvs.New()
	if err != nil {
		return nil, nil, err
	}
	return b, b.Follow().Read, nil
}

type serverSummaries interface {
	Lookup(context.Context, []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	CountIPv4(context.Context) (int, error)
	Stats() nlbatch.Stats
	Close() error
}

func openServerSummaries(cfg Config) (serverSummaries, error) {
	if cfg.Mode.NFTablesBalances() {
		b, err := balance.New(cfg.Families)
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	b, err := ipvs.New()
	if err != nil {
		return nil, err
	}
	ipv4, err := sockopt.Open(inet.IPv4)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return ipvsSummaries{b, ipv4}, nil
}

type ipvsSummaries struct {
	*ipvs.Backend
	ipv4 *sockopt.Socket
}

func (s ipvsSummaries) CountIPv4(context.Context) (int, error) { return ipvs.CountIPv4(s.ipv4) }

func (s ipvsSummaries) Close() error { return errors.Join(s.Backend.Close(), s.ipv4.Close()) }
