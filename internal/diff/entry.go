package diff

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// inEntryOrder sorts new destinations by the order in which they enter their virtual server. The kernel keeps it, newest first,
// and a scheduler that takes turns begins there: on every node at another endpoint, or all nodes of a cluster would send their
// first client to the same one. Schedulers that choose by a hash need the same order on every node, to choose the same endpoint.
func inEntryOrder(scheduler, seed string, ds []kernel.Destination) []kernel.Destination {
	if hashes[scheduler] {
		return ds
	}
	slices.SortStableFunc(ds, func(a, b kernel.Destination) int { return cmp.Compare(lot(seed, a), lot(seed, b)) })
	return ds
}

// hashes are the schedulers that choose by a hash of the client or the virtual address.
var hashes = map[string]bool{"sh": true, "mh": true, "dh": true}

// lot is a number that looks random but is the same whenever it is drawn.
func lot(seed string, d kernel.Destination) uint64 {
	h := fnv.New64a()
	h.Write([]byte(seed))
	text, _ := d.Addr.MarshalBinary()
	h.Write(text)
	return h.Sum64()
}
