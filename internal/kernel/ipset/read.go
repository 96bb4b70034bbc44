package ipset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Read returns the sets whose names have the prefix, and their members. A set has no members in the result if its type is unknown to
// package kernel, or if it has extensions (see decodeHeader).
func (b *Backend) Read(ctx context.Context, prefix string) (
	map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error,
) {
	return b.Follow().Read(ctx, prefix)
}

// LookupMembers returns the given members that exist.
func (b *Backend) LookupMembers(ctx context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error) {
	asked := slices.DeleteFunc(slices.Clone(members), func(m kernel.Member) bool { return checkElement(m.Element) != nil }) // such a member cannot exist
	reqs := make([]nlbatch.Request, len(asked))
	for i, m := range asked {
		attrs := nlbatch.AppendString(nil, nl.IPSET_ATTR_SETNAME, m.Set)
		reqs[i] = request(cmdTest, appendElement(attrs, m.Element, 1))
	}
	found := map[kernel.Member]struct{}{}
	for i, err := range b.conn.Do(ctx, reqs) {
		switch {
		case err == nil:
			found[asked[i]] = struct{}{}
		case !errors.Is(err, unix.ENOENT) && !isErrno(err, nl.IPSET_ERR_EXIST):
			return nil, fmt.Errorf("look up member %s: %w", asked[i], refusal(err))
		}
	}
	return found, nil
}

// headers reads all sets if the name is empty.
func (b *Backend) headers(ctx context.Context, name string) ([]header, error) {
	var attrs []byte
	if name != "" {
		attrs = nlbatch.AppendString(nil, nl.IPSET_ATTR_SETNAME, name)
	}
	attrs = appendBigUint32(attrs, nl.IPSET_ATTR_FLAGS, flagHeaderOnly)
	var headers []header
	err := b.conn.Walk(ctx, request(cmdList, attrs), func(payload []byte) error {
		h, err := decodeHeader(payload)
		headers = append(headers, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	return headers, nil
}

// header returns kernel.ErrNotFound if the set does not exist.
func (b *Backend) header(ctx context.Context, name string) (header, error) {
	headers, err := b.headers(ctx, name)
	if errors.Is(err, unix.ENOENT) || err == nil && len(headers) == 0 {
		return header{}, kernel.ErrNotFound
	}
	if err != nil {
		return header{}, fmt.Errorf("read parameters: %w", err)
	}
	return headers[0], nil
}
