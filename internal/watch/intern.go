package watch

import "sync"

// maxInterned bounds the interner: nodes come and go for the life of the process. Forgetting costs only that a name may
// be in memory twice.
const maxInterned = 1 << 16

// interner keeps one copy of each name. A cluster has thousands of endpoints for each node and zone, and the decoder
// allocates the name again for each of them. (The unique package forgets a value once no handle to it is left, and the
// model holds strings, not handles.)
type interner struct {
	mu   sync.Mutex
	seen map[string]string
}

func newInterner() *interner { return &interner{seen: make(map[string]string)} }

func (i *interner) name(s string) string {
	if s == "" {
		return ""
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, ok := i.seen[s]; ok {
		return known
	}
	if len(i.seen) == maxInterned {
		clear(i.seen)
	}
	i.seen[s] = s
	return s
}

// optional is the name behind a pointer; "" for nil.
func (i *interner) optional(s *string) string {
	if s == nil {
		return ""
	}
	return i.name(*s)
}
