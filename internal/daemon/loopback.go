//go:build linux

package daemon

import (
	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
)

func loopbackProblem(observer *telemetry.Telemetry) func(id model.ServiceID, err error) {
	return func(id model.ServiceID, err error) {
		field := "loopback node ports of Service " + id.String()
		if err == nil {
			observer.ClearProblem(field)
			return
		}
		observer.SetProblem(model.Problem{
			Field: field, Reason: err.Error(),
			Remedy: "if another process has the port, stop it or move it; or remove the loopback range from nodePortAddresses",
		})
	}
}

func loopbackPorts(r *agent.Report) map[model.ServiceID][]model.LoopbackPort {
	ports := make(map[model.ServiceID][]model.LoopbackPort, len(r.Served))
	for id, served := range r.Served {
		ports[id] = served.Loopback
	}
	return ports
}
