package ipset

import (
	"context"
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Summaries returns the sets whose names have the prefix, with the kernel's count of their members. visited is the number of members and hash
// buckets that the kernel visited to count them, including those of other sets.
func (b *Backend) Summaries(ctx context.Context, prefix string) (sets map[string]kernel.SetSummary, visited int, err error) {
	headers, err := b.headers(ctx, "")
	if err != nil {
		return nil, 0, fmt.Errorf("list sets: %w", err)
	}
	sets = make(map[string]kernel.SetSummary, len(headers))
	for _, h := range headers {
		visited += int(h.elements) + int(h.buckets)
		if strings.HasPrefix(h.Name, prefix) {
			sets[h.Name] = kernel.SetSummary{Set: h.Set, Members: int(h.elements)}
		}
	}
	return sets, visited, nil
}
