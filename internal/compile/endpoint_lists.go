package compile

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// endpointLists contains the sorted endpoints of a Service with several EndpointSlices. If some of the slices change, the next version reuses the
// endpoints of the others, which are already checked and sorted. Without this, a change of one endpoint would cost as much as all of them.
//
// It contains only lists in which every address occurs once and every endpoint gets traffic, because only these have a single possible order.
type endpointLists struct {
	slices []*model.EndpointSlice
	// refusing is the value of nodeContext.refusing when the slices were checked.
	refusing uint64
	sorted   map[listKey][]Endpoint
	// before contains the lists of the previous version. gone and come are the slices that only the previous version, or only this version, has.
	before     map[listKey][]Endpoint
	gone, come []*model.EndpointSlice
}

type listKey struct {
	family   inet.Family
	protocol inet.Protocol
	port     string
}

// newEndpointLists returns lists that reuse those of the Service's previous version, which may be nil.
func newEndpointLists(svc *model.Service, before *endpointLists, n *nodeContext) *endpointLists {
	l := &endpointLists{slices: svc.Slices, refusing: n.refusing(), come: svc.Slices}
	if before != nil {
		l.before, l.gone, l.come = before.sorted, onlyIn(before.slices, svc.Slices), onlyIn(svc.Slices, before.slices)
	}
	return l
}

// onlyIn returns the slices of the first list that are not in the second.
func onlyIn(a, b []*model.EndpointSlice) (only []*model.EndpointSlice) {
	a, b = trim(a, b, func(a, b **model.EndpointSlice) bool { return *a == *b })
	also := make(map[*model.EndpointSlice]struct{}, len(b))
	for _, slice := range b {
		also[slice] = struct{}{}
	}
	return slices.DeleteFunc(slices.Clone(a), func(slice *model.EndpointSlice) bool {
		_, exists := also[slice]
		return exists
	})
}

// forget drops what only this version's compilation needs.
func (l *endpointLists) forget() { l.before, l.gone, l.come = nil, nil, nil }

// unchecked returns the slices whose endpoints may be refused, given the previous version.
func (l *endpointLists) unchecked(before *endpointLists) []*model.EndpointSlice {
	if before != nil && before.sorted != nil && before.refusing == l.refusing {
		return l.come
	}
	return l.slices
}

// of returns the endpoints of a port, sorted by address.
func (l *endpointLists) of(from slicePorts, node string, refused refusals) []Endpoint {
	if len(from) < 2 || len(refused) > 0 {
		sorted, _ := allEndpoints(from, node, refused)
		return sorted
	}
	key := listKey{from[0].slice.Family, from[0].Protocol, from[0].Name}
	sorted, distinct := l.reuse(l.before[key], from)
	if !distinct {
		sorted, distinct = allEndpoints(from, node, refused)
	}
	if distinct {
		if l.sorted == nil {
			l.sorted = map[listKey][]Endpoint{}
		}
		l.sorted[key] = sorted
	}
	return sorted
}

// reuse replaces the endpoints of changed slices in the previous list. It returns false if all endpoints must be sorted instead.
func (l *endpointLists) reuse(before []Endpoint, from slicePorts) (sorted []Endpoint, distinct bool) {
	if before == nil || len(l.come) > len(l.slices)/2 {
		return nil, false
	}
	come, distinct := allEndpoints(slices.DeleteFunc(slices.Clone(from), func(p slicePort) bool { return !slices.Contains(l.come, p.slice) }), "", nil)
	if !distinct {
		return nil, false
	}
	return l.replaced(before, come)
}

// replaced merges the endpoints of unchanged slices with those of new slices. It returns false if both contain an address.
func (l *endpointLists) replaced(before, come []Endpoint) (all []Endpoint, distinct bool) {
	all = make([]Endpoint, 0, len(before)+len(come))
	for _, e := range before {
		if slices.Contains(l.gone, e.slice) {
			continue
		}
		for len(come) > 0 && come[0].Addr.Compare(e.Addr) < 0 {
			all, come = append(all, come[0]), come[1:]
		}
		if len(come) > 0 && come[0].Addr == e.Addr {
			return nil, false
		}
		all = append(all, e)
	}
	return append(all, come...), true
}
