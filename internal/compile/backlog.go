package compile

import (
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// backlog has the Services that changes of others affect, and that are not compiled again yet, in order. A large Service would otherwise make
// each change of a small one as expensive as its own: its author may claim the addresses that others will get. What such a Service loses to
// another one is gone at once (want.State), and what else changes in it follows within a few syncs.
type backlog []model.ServiceID

// work bounds what Update compiles of the backlog, in frontends, destinations and set entries: as much as the change itself, but at least
// little; and much if nothing changed.
type work struct{ little, much int }

var defaultWork = work{little: 64, much: 1 << 12}

// Behind reports whether Services wait in the backlog. Update compiles some of them even if no Service changes.
func (c *Cluster) Behind() bool { return len(c.backlog) > 0 }

// take removes and returns the first Services of the backlog: as many as the work allows, and at least so many.
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

// with adds the affected Services that do not wait yet.
func (b backlog) with(affected map[model.ServiceID]struct{}) backlog {
	for _, id := range b {
		delete(affected, id)
	}
	return append(b, slices.SortedFunc(maps.Keys(affected), model.ServiceID.Compare)...)
}

// without removes Services that have just been compiled.
func (b backlog) without(compiled map[model.ServiceID]*compiled) backlog {
	return slices.DeleteFunc(b, func(id model.ServiceID) bool { return compiled[id] != nil })
}
