//go:build !pause

package live

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// A build with the tag pause replaces applyTo (pause.go).
func applyTo(ctx context.Context, b applier, ops []kernel.Op) []error { return b.Apply(ctx, ops) }
