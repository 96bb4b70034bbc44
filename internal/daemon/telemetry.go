//go:build linux

package daemon

import (
	"context"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/loopback"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
)

// openTelemetry sets up metrics, health and Events. It posts Events only if the source is an API server.
func openTelemetry(
	ctx context.Context, cfg Config, current *current, nodes *nodes, source *Source, last *snapshot, traffic *traffic, loopbacks *loopback.Ports,
) (*telemetry.Telemetry, error) {
	node := nodes.current()
	serving, _ := node.Kernel.HasDevice(ctx) // the first sync reports the error
	settings := current.settings()
	return telemetry.New(telemetry.Config{
		Version:        cfg.Version,
		Commit:         cfg.Commit,
		Node:           node.host.NodeName,
		Families:       node.host.Families,
		NotServed:      node.Without,
		DataPlane:      node.Mode.DataPlane(),
		Rules:          node.Mode.Rules(),
		Source:         source.telemetry(last),
		Traffic:        traffic.telemetry(settings),
		Tables:         (&tables{nodes: nodes}).read,
		Loopback:       loopbacks.Counts,
		Configuration:  func() ([]byte, error) { return current.inForce.Load().SettingsJSON() },
		Refused:        func() bool { return current.refused.Load() != nil },
		Serving:        serving,
		Period:         agentSettings(settings).Period(),
		HealthAddress:  settings.HealthAddress,
		MetricsAddress: settings.MetricsAddress,
		Profiling:      settings.Profiling,
		API:            source.api,
		Log:            cfg.Log,
	})
}

func (s *Source) telemetry(last *snapshot) telemetry.Source {
	t := telemetry.Source{
		Synced: s.Source.Synced,
		Changes: func() telemetry.Changes {
			c := s.Source.Counts()
			return telemetry.Changes{
				Services: c.Services, ServicesPending: c.ServicesPending, Endpoints: c.Endpoints, EndpointsPending: c.EndpointsPending,
			}
		},
	}
	if last != nil {
		t.Snapshot = last.telemetry
	}
	if s.lastContact != nil {
		t.LastContact = func() map[string]time.Time {
			byName := map[string]time.Time{}
			for kind, at := range s.lastContact() {
				byName[string(kind)] = at
			}
			return byName
		}
	}
	return t
}
