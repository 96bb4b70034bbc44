package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// source is where Services come from, and what must run for it.
type source interface {
	agent.Source
	Run(context.Context) error
	Counts() watch.Counts
}

// origin is a source with what else is known of it.
type origin struct {
	source source
	// api is the API server; nil for manifests.
	api *rest.Config
	// heard is when each kind of object was last heard of; nil for manifests.
	heard func() map[model.Kind]time.Time
	// failed is why a kind is not being heard; nil for manifests.
	failed func() map[model.Kind]error
}

func openSource(settings *config.Settings, nodeName string, log *zap.Logger) (origin, error) {
	proxy := watch.Proxy(settings.ServiceProxyName)
	if settings.Manifests != "" {
		log.Info("serving manifests", zap.String("directory", settings.Manifests))
		return origin{source: watch.NewManifests(settings.Manifests, proxy, log)}, nil
	}
	watch.RedirectKlog(log)
	api, err := watch.RESTConfig(settings.Kubeconfig, settings.Master)
	if err != nil {
		return origin{}, errors.Join(err, errors.New("or give --manifests DIR to serve manifests without an API server"))
	}
	api.QPS, api.Burst = float32(settings.QPS), settings.Burst
	log.Info("watching the API server", zap.String("address", api.Host), zap.String("node", nodeName))
	source, err := watch.NewAPI(api, watch.Options{UserAgent: "kube-ipvs/" + version, Proxy: proxy, Logger: log})
	if err != nil {
		return origin{}, fmt.Errorf("open the API server's client: %w", err)
	}
	return origin{source, api, source.LastHeard, source.LastError}, nil
}

// apiServer is the API server's address; invalid for a name, or without an API server.
func (o origin) apiServer() netip.Addr {
	if o.api == nil {
		return netip.Addr{}
	}
	server, err := url.Parse(o.api.Host)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(server.Hostname())
	return addr
}

// openTelemetry returns what tells the world of the agent. Events go to the API server that is the source, if one is.
func openTelemetry(
	current *current, node *node, from origin, traffic *traffic, log *zap.Logger,
) (*telemetry.Telemetry, error) {
	build, settings := buildVersion(), current.settings()
	return telemetry.New(telemetry.Config{
		Version:        build.Version,
		Commit:         build.Commit,
		Node:           node.host.NodeName,
		Families:       node.host.Families,
		NotServed:      node.notServed,
		Source:         from.telemetry(),
		Traffic:        traffic.telemetry(settings),
		Configuration:  func() ([]byte, error) { return current.inForce.Load().SettingsJSON() },
		Refused:        func() bool { return current.whyRefused() != "" },
		SyncPeriod:     settings.SyncPeriod,
		HealthAddress:  settings.HealthAddress,
		MetricsAddress: settings.MetricsAddress,
		Profiling:      settings.Profiling,
		API:            from.api,
		Log:            log,
	})
}

// telemetry is what is told of the source.
func (o origin) telemetry() telemetry.Source {
	s := telemetry.Source{
		Synced: o.source.Synced,
		Changes: func() telemetry.Changes {
			c := o.source.Counts()
			return telemetry.Changes{
				Services: c.Services, ServicesPending: c.ServicesPending, Endpoints: c.Endpoints, EndpointsPending: c.EndpointsPending,
			}
		},
	}
	if o.heard != nil {
		s.LastHeard = func() map[string]time.Time {
			byName := map[string]time.Time{}
			for kind, at := range o.heard() {
				byName[string(kind)] = at
			}
			return byName
		}
	}
	return s
}
