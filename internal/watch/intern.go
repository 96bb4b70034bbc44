package watch

import (
	"strings"
	"sync"
)

// maxInterned limits the size of the interner, because a long-running agent sees the names of many nodes over time. After a reset, a name
// may be in memory twice, which is harmless.
const maxInterned = 1 << 16

// maxName is the maximum length of an interned name. The API server does not limit the length of every name.
const maxName = 253

// interner keeps one copy of each name. A cluster has thousands of endpoints, and the decoder allocates the names of the node and the zone
// for each of them. (Package unique does not help: it keeps a value only while a handle exists, and the model stores strings.)
type interner struct {
	mu   sync.Mutex
	seen map[string]string
}

func newInterner() *interner { return &interner{seen: make(map[string]string)} }

// name returns a name in valid UTF-8, which metric labels require.
func (i *interner) name(s string) string {
	if s = strings.ToValidUTF8(s, "?"); s == "" || len(s) > maxName {
		return s
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

func (i *interner) optional(s *string) string {
	if s == nil {
		return ""
	}
	return i.name(*s)
}
