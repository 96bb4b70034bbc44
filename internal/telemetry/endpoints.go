package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// The states of endpoints, as labels.
const (
	endpointReady, endpointServing    = "ready", "serving"
	endpointUnready, endpointDraining = "unready", "draining"
)

// endpoints counts the endpoints of all Services by state.
type endpoints struct {
	count *prometheus.GaugeVec
	// of contains the counts for each Service. Only the loop uses it.
	of map[model.ServiceID]endpointCounts
}

type endpointCounts struct{ ready, serving, unready int }

func newEndpoints() *endpoints {
	e := &endpoints{
		count: gauges("kube_ipvs_endpoints", "Endpoints of the Services that this node serves, on any node: ready, serving (terminating, still "+
			"serving) or unready; and draining: removed endpoints that keep connections through this node.", "state"),
		of: map[model.ServiceID]endpointCounts{},
	}
	for _, state := range []string{endpointReady, endpointServing, endpointUnready, endpointDraining} {
		e.count.WithLabelValues(state)
	}
	return e
}

// observe adjusts the counts incrementally: a Report contains only the compiled Services.
func (e *endpoints) observe(r *agent.Report) {
	for id, served := range r.Served {
		now := countEndpoints(served.Service)
		e.change(endpointReady, now.ready-e.of[id].ready)
		e.change(endpointServing, now.serving-e.of[id].serving)
		e.change(endpointUnready, now.unready-e.of[id].unready)
		if e.of[id] = now; now == (endpointCounts{}) {
			delete(e.of, id)
		}
	}
	e.count.WithLabelValues(endpointDraining).Set(float64(r.Draining))
}

func (e *endpoints) change(state string, by int) { e.count.WithLabelValues(state).Add(float64(by)) }

func countEndpoints(s *model.Service) endpointCounts {
	var c endpointCounts
	if s == nil {
		return c
	}
	for _, slice := range s.Slices {
		for _, e := range slice.Endpoints {
			switch {
			case e.Ready:
				c.ready++
			case e.Serving:
				c.serving++
			default:
				c.unready++
			}
		}
	}
	return c
}
