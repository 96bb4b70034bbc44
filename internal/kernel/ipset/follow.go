package ipset

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Follower reads sets repeatedly. It decodes the members only of sets that have changed since the last read.
type Follower struct {
	backend *Backend
	seed    maphash.Seed
	sets    map[string]followed
}

type followed struct {
	set     kernel.Set
	sum     sum
	members map[kernel.Element]struct{}
}

// sum does not depend on the order of members, which changes when the kernel's set grows.
type sum struct {
	count int
	hash  uint64
}

// Follow returns a new Follower.
func (b *Backend) Follow() *Follower {
	return &Follower{backend: b, seed: maphash.MakeSeed(), sets: map[string]followed{}}
}

// Read returns the same result as Backend.Read. The result must not be changed.
func (f *Follower) Read(ctx context.Context, prefix string) (
	map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error,
) {
	// Read the headers first, because the kernel does not filter by prefix and foreign sets may be huge.
	headers, err := f.backend.headers(ctx, "")
	if err != nil {
		return nil, nil, fmt.Errorf("read sets: %w", err)
	}
	sets, members := map[string]kernel.Set{}, map[string]map[kernel.Element]struct{}{}
	before := f.sets
	f.sets = map[string]followed{}
	for _, h := range headers {
		if !strings.HasPrefix(h.Name, prefix) {
			continue
		}
		now, err := f.follow(ctx, h, before[h.Name])
		if errors.Is(err, unix.ENOENT) {
			continue // the set has just been destroyed
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read set %s: %w", h.Name, err)
		}
		f.sets[h.Name] = now
		sets[h.Name], members[h.Name] = now.set, now.members
	}
	return sets, members, nil
}

// follow hashes the members of a set. Only if the hash has changed does it read the set again and decode the members.
func (f *Follower) follow(ctx context.Context, h header, before followed) (followed, error) {
	now := followed{set: h.Set, members: map[kernel.Element]struct{}{}}
	if !ours(h.Type) {
		return now, nil
	}
	request := request(cmdList, nlbatch.AppendString(nil, nl.IPSET_ATTR_SETNAME, h.Name))
	if before.set == h.Set {
		var read sum
		err := f.backend.conn.Walk(ctx, request, func(payload []byte) error { return f.add(payload, &read) })
		if err != nil || read == before.sum {
			return before, err
		}
	}
	now.members = make(map[kernel.Element]struct{}, h.elements)
	err := f.backend.conn.Walk(ctx, request, func(payload []byte) error {
		return errors.Join(f.add(payload, &now.sum), decodeMembers(h.Type, payload, now.members))
	})
	return now, err
}

func (f *Follower) add(payload []byte, to *sum) error {
	return eachAttr(payload, func(attr uint16, v []byte) error {
		if attr != nl.IPSET_ATTR_ADT {
			return nil
		}
		return nlbatch.EachAttr(v, func(_ uint16, data []byte) error {
			to.count++
			to.hash += maphash.Bytes(f.seed, data)
			return nil
		})
	})
}
