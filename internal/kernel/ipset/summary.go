package ipset

import (
	"context"
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Summaries returns the sets whose names have the prefix, with the kernel's count of their members.
func (b *Backend) Summaries(ctx context.Context, prefix string) (map[string]kernel.SetSummary, error) {
	headers, err := b.headers(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	sets := make(map[string]kernel.SetSummary, len(headers))
	for _, h := range headers {
		if strings.HasPrefix(h.Name, prefix) {
			sets[h.Name] = kernel.SetSummary{Set: h.Set, Members: int(h.elements)}
		}
	}
	return sets, nil
}
