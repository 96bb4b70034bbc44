package diff

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// inEntryOrder sorts new destinations in the order in which they are added to their virtual server. The kernel lists destinations newest
// first, and round robin starts with the newest. The order differs between nodes. Otherwise, all nodes of a cluster would send their first
// client to the same endpoint. Hashing schedulers need the same order on every node to choose the same endpoint.
func inEntryOrder(scheduler, seed string, ds []kernel.Destination) []kernel.Destination {
	if hashing[scheduler] || len(ds) < 2 {
		return ds
	}
	type hashed struct {
		hash uint64
		kernel.Destination
	}
	all := make([]hashed, len(ds))
	for i, d := range ds {
		all[i] = hashed{hash(seed, d), d}
	}
	slices.SortStableFunc(all, func(a, b hashed) int { return cmp.Compare(a.hash, b.hash) })
	for i := range all {
		ds[i] = all[i].Destination
	}
	return ds
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
