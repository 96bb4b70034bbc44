package snapshot

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// noEndpointsReason explains why ready endpoints of a Service do not serve one of its frontends; empty if none is ready.
func noEndpointsReason(svc *model.Service, f compile.Frontend) string {
	ready, reason := compile.Unserved(svc, f.Port, f.Key.Family())
	switch {
	case reason == "":
		return ""
	case ready == 1:
		return "1 endpoint is ready, but " + reason
	}
	return fmt.Sprintf("%d endpoints are ready, but %s", ready, reason)
}
