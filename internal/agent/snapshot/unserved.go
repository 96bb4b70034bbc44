package snapshot

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
)

// noEndpointsReason explains why ready endpoints of a Service do not serve one of its frontends; empty if none is ready.
func noEndpointsReason(f compile.Frontend) string {
	switch {
	case f.IdleReason == "":
		return ""
	case f.Idle == 1:
		return "1 endpoint is ready, but " + f.IdleReason
	}
	return fmt.Sprintf("%d endpoints are ready, but %s", f.Idle, f.IdleReason)
}
