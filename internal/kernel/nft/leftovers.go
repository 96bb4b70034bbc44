package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func proxyTable(msg uint16, f inet.Family) nlbatch.Request {
	return wire.TableRequest(msg, map[inet.Family]byte{inet.IPv4: unix.NFPROTO_IPV4, inet.IPv6: unix.NFPROTO_IPV6}[f], kernel.ProxyTable)
}

// FindLeftovers lists kube-proxy's tables.
func (b *Backend) FindLeftovers(ctx context.Context) (found []kernel.Leftover, err error) {
	for _, f := range inet.Families {
		answers, err := b.conn.Get(ctx, []nlbatch.Request{proxyTable(unix.NFT_MSG_GETTABLE, f)})
		if err != nil {
			return nil, fmt.Errorf("look for table %s %s: %w", kernel.NFTFamily(f), kernel.ProxyTable, err)
		}
		if len(answers[0]) > 0 {
			found = append(found, kernel.Leftover{Place: kernel.RulesNFTables, Family: f})
		}
	}
	return found, nil
}

// RemoveLeftover deletes one of kube-proxy's tables and everything in it, in one step.
func (b *Backend) RemoveLeftover(ctx context.Context, l kernel.Leftover) error {
	err := b.conn.Commit(ctx, []nlbatch.Request{proxyTable(unix.NFT_MSG_DELTABLE, l.Family)})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
