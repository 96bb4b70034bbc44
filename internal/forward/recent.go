package forward

import "container/list"

// recent is a map that knows which of its keys has not been used for the longest time.
type recent[K, V comparable] struct {
	elements map[K]*list.Element
	order    list.List // of entry[K, V]; the least recently used is at the front
}

type entry[K, V comparable] struct {
	key   K
	value V
}

func newRecent[K, V comparable]() *recent[K, V] {
	return &recent[K, V]{elements: map[K]*list.Element{}}
}

func (r *recent[K, V]) len() int { return len(r.elements) }

// use returns a value, and makes its key the most recently used.
func (r *recent[K, V]) use(key K) (value V, ok bool) {
	e, ok := r.elements[key]
	if !ok {
		return value, false
	}
	r.order.MoveToBack(e)
	return e.Value.(entry[K, V]).value, true
}

// put sets a value, and makes its key the most recently used.
func (r *recent[K, V]) put(key K, value V) {
	r.remove(key)
	r.elements[key] = r.order.PushBack(entry[K, V]{key, value})
}

// has reports whether the key has this value.
func (r *recent[K, V]) has(key K, value V) bool {
	e, ok := r.elements[key]
	return ok && e.Value.(entry[K, V]).value == value
}

func (r *recent[K, V]) remove(key K) {
	if e, ok := r.elements[key]; ok {
		r.order.Remove(e)
		delete(r.elements, key)
	}
}

// oldest returns the least recently used key and its value. The map must not be empty.
func (r *recent[K, V]) oldest() (K, V) {
	e := r.order.Front().Value.(entry[K, V])
	return e.key, e.value
}

// all iterates from the least recently used key. The caller may remove the current one.
func (r *recent[K, V]) all(yield func(K, V) bool) {
	for e := r.order.Front(); e != nil; {
		current := e.Value.(entry[K, V])
		if e = e.Next(); !yield(current.key, current.value) {
			return
		}
	}
}
