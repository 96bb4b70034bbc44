package diff

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// sort sorts new destinations in the order in which they are added to their virtual server. The kernel lists destinations newest
// first, and round robin starts with the newest. The order differs between nodes. Otherwise, all nodes of a cluster would send their first
// client to the same endpoint. Hashing schedulers need the same order on every node to choose the same endpoint.
func (o *entryOrder) sort(scheduler, seed string, ds []kernel.Destination) {
	if hashing[scheduler] || len(ds) < 2 {
		return
	}
	all := slices.Grow((*o)[:0], len(ds))
	for _, d := range ds {
		all = append(all, hashed{hash(seed, d), d})
	}
	slices.SortStableFunc(all, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
	for i := range all {
		ds[i] = all[i].Destination
	}
	*o = all
}

// entryOrder is the memory that sort needs. One plan may sort the destinations of ten thousand virtual servers.
type entryOrder []hashed

type hashed struct {
	hash uint64
	kernel.Destination
}

var hashing = map[string]bool{"sh": true, "mh": true, "dh": true}

func hash(seed string, d kernel.Destination) uint64 {
	h := fnv.New64a()
	h.Write([]byte(seed))
	var text [32]byte // longer than any address without a zone
	binary, _ := d.Addr.AppendBinary(text[:0])
	h.Write(binary)
	return h.Sum64()
}
