//go:build !pause

package live

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// applyTo gives a backend all its operations in one call. (pause.go replaces this in a build for tests.)
func applyTo(ctx context.Context, b applier, ops []kernel.Op) []error { return b.Apply(ctx, ops) }
