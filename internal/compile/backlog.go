package compile

import (
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// backlog lists, in order, the Services that must be compiled again because other Services changed. Without it, a tenant could make each change to a
// small Service expensive, because a large Service that claims other Services' addresses would be recompiled each time. If another Service wins an
// address, the large Service loses it immediately (want.State). The large Service's other changes follow within a few syncs.
type backlog []model.ServiceID

// work limits how much of the backlog Update compiles, counted in frontends, destinations and set entries. The limit is the size of the change, but
// at least little. If nothing has changed, the limit is much.
type work struct{ little, much int }

var defaultWork = work{little: 64, much: 1 << 12}

// take removes the first Services from the backlog and returns them: as many as work allows, and never fewer than least.
func (b *backlog) take(work, least int, sizeOf func(model.ServiceID) int) []model.ServiceID {
	n := 0
	for ; n < len(*b); n++ {
		if work -= sizeOf((*b)[n]); work < 0 && n >= least {
			break
		}
	}
	taken := slices.Clone((*b)[:n])
	*b = (*b)[n:]
	return taken
}

func (b backlog) with(affected map[model.ServiceID]struct{}) backlog {
	for _, id := range b {
		delete(affected, id)
	}
	return append(b, slices.SortedFunc(maps.Keys(affected), model.ServiceID.Compare)...)
}

// without removes Services that were just compiled. The list must be sorted.
func (b backlog) without(done []model.ServiceID) backlog {
	return slices.DeleteFunc(b, func(id model.ServiceID) bool {
		_, found := slices.BinarySearchFunc(done, id, model.ServiceID.Compare)
		return found
	})
}
