package live

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
)

// The functions in this file are for commands. Each opens a backend, reads its objects once, and closes it.

// FindMode returns the mode of the agent that wrote this node's kernel state. It ignores nftables errors, because either no agent has used
// nftables on this node, or the functions below return a better error.
func FindMode(ctx context.Context) kernel.Mode {
	b, err := nft.New(inet.Families, nil)
	if err != nil {
		return kernel.IPVSWithIPTables
	}
	defer func() { _ = b.Close() }()
	if exists, err := b.Exists(ctx); err != nil || !exists {
		return kernel.IPVSWithIPTables
	}
	if balances, err := b.Balances(ctx); err != nil || !balances {
		return kernel.IPVSWithNFTables
	}
	return kernel.NFTablesOnly
}

// ReadServers reads all virtual servers.
func ReadServers(ctx context.Context, mode kernel.Mode) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	b, _, err := openServers(Config{Families: inet.Families, Mode: mode})
	if err != nil {
		return nil, err
	}
	servers, err := b.Read(ctx)
	return servers, errors.Join(err, b.Close())
}

// ReadClients reads the affinity records of these virtual servers. Only nftables has them in this form.
func ReadClients(ctx context.Context, keys []kernel.ServerKey) (all []kernel.Connection, err error) {
	b, err := balance.New(inet.Families)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		clients, failed := b.Clients(ctx, key)
		all, err = append(all, clients...), errors.Join(err, failed)
	}
	return all, errors.Join(err, b.Close())
}

// ReadSets reads the sets whose names begin with the prefix, and their members.
func ReadSets(ctx context.Context, mode kernel.Mode, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error) {
	b, read, _, err := openSets(Config{Families: inet.Families, Mode: mode})
	if err != nil {
		return nil, nil, err
	}
	sets, members, err := read(ctx, prefix)
	return sets, members, errors.Join(err, b.Close())
}
