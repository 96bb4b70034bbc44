package forward

import (
	"container/heap"
	"sync/atomic"
)

// recent is a map that knows which of its keys has not been used for the longest time. Using a key changes only the key's
// element, so goroutines may call use at the same time. oldest puts in order what they have used.
type recent[K, V comparable] struct {
	uses     atomic.Int64
	elements map[K]*element[K, V]
	order    order[K, V]
}

type element[K, V comparable] struct {
	key   K
	value V
	// used is the number of the last use. It is at least placed, the number by which the element has its place in the order.
	used   atomic.Int64
	placed int64
	at     int
}

func newRecent[K, V comparable]() *recent[K, V] {
	return &recent[K, V]{elements: map[K]*element[K, V]{}}
}

func (r *recent[K, V]) len() int { return len(r.elements) }

// use returns a value, and makes its key the most recently used.
func (r *recent[K, V]) use(key K) (value V, ok bool) {
	e, ok := r.elements[key]
	if !ok {
		return value, false
	}
	e.used.Store(r.uses.Add(1))
	return e.value, true
}

// put sets a value, and makes its key the most recently used.
func (r *recent[K, V]) put(key K, value V) {
	r.remove(key)
	e := &element[K, V]{key: key, value: value, placed: r.uses.Add(1)}
	e.used.Store(e.placed)
	r.elements[key] = e
	heap.Push(&r.order, e)
}

// has reports whether the key has this value.
func (r *recent[K, V]) has(key K, value V) bool {
	e, ok := r.elements[key]
	return ok && e.value == value
}

func (r *recent[K, V]) remove(key K) {
	if e, ok := r.elements[key]; ok {
		heap.Remove(&r.order, e.at)
		delete(r.elements, key)
	}
}

// oldest returns the least recently used key and its value. The map must not be empty. Every use moves an element at most
// once.
func (r *recent[K, V]) oldest() (K, V) {
	for {
		e := r.order[0]
		if e.placed == e.used.Load() {
			return e.key, e.value
		}
		e.placed = e.used.Load()
		heap.Fix(&r.order, 0)
	}
}

// all iterates in no particular order. The caller may remove the current key.
func (r *recent[K, V]) all(yield func(K, V) bool) {
	for key, e := range r.elements {
		if !yield(key, e.value) {
			return
		}
	}
}

// order is a heap of elements. The first has the smallest placed.
type order[K, V comparable] []*element[K, V]

func (o order[K, V]) Len() int           { return len(o) }
func (o order[K, V]) Less(i, j int) bool { return o[i].placed < o[j].placed }

func (o order[K, V]) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].at, o[j].at = i, j
}

func (o *order[K, V]) Push(e any) {
	last := e.(*element[K, V])
	last.at = len(*o)
	*o = append(*o, last)
}

func (o *order[K, V]) Pop() any {
	n := len(*o) - 1
	last := (*o)[n]
	(*o)[n], *o = nil, (*o)[:n]
	return last
}
