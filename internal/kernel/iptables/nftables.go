package iptables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// nftObject is a chain of iptables-nft, or a table if chain is empty.
type nftObject struct{ table, chain string }

func (o nftObject) request(f inet.Family) nlbatch.Request {
	header := []byte{nftFamilyNumbers[f], unix.NFNETLINK_V0, 0, 0}
	if o.chain == "" {
		return nlbatch.Request{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, Payload: nlbatch.AppendString(header, unix.NFTA_TABLE_NAME, o.table)}
	}
	payload := nlbatch.AppendString(header, unix.NFTA_CHAIN_TABLE, o.table)
	payload = nlbatch.AppendString(payload, unix.NFTA_CHAIN_NAME, o.chain)
	return nlbatch.Request{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Payload: payload}
}

// inNFT reports which objects exist in the calling thread's network namespace. On error, the result is nil. Tests replace this function.
var inNFT = func(ctx context.Context, f inet.Family, objects []nftObject) ([]bool, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	reqs := make([]nlbatch.Request, len(objects))
	for i, o := range objects {
		reqs[i] = o.request(f)
	}
	_, errs := conn.Get(ctx, reqs)
	_ = conn.Close()
	exist := make([]bool, len(objects))
	for i, err := range errs {
		if exist[i] = err == nil; !exist[i] && !isMissing(err) {
			return nil, fmt.Errorf("look up %s %s in nftables: %w", objects[i].table, objects[i].chain, err)
		}
	}
	return exist, nil
}

// isMissing reports whether the kernel lacks the object, or nf_tables altogether.
func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}
