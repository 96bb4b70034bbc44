package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/manifests"
)

// Runner is a source of Services that runs in the background.
type Runner interface {
	agent.Source
	Run(context.Context) error
	Counts() watch.Counts
}

// Source is the source of Services: an API server or a directory of manifests.
type Source struct {
	Source Runner
	// api is the configuration of the API server's client. It is nil if the source is a directory of manifests, like
	// the functions below.
	api *rest.Config
	// lastContact returns the time of the last message about each kind of object.
	lastContact func() map[model.Kind]time.Time
	// contacts returns the addresses of the API server that are known so far.
	contacts func() []netip.AddrPort
	// lastErrors returns the errors of failing watches by kind.
	lastErrors func() map[model.Kind]error
}

func openSource(settings *config.Settings, nodeName, version string, log *zap.Logger) (*Source, error) {
	proxy := watch.Proxy(settings.ServiceProxyName)
	if settings.Manifests != "" {
		log.Info("serving manifests", zap.String("directory", settings.Manifests))
		return &Source{Source: manifests.New(settings.Manifests, proxy, log)}, nil
	}
	watch.RedirectKlog(log)
	api, err := watch.RESTConfig(settings.Kubeconfig, settings.Master)
	if err != nil {
		return nil, errors.Join(err, errors.New("or use --manifests DIR to serve manifests without an API server"))
	}
	api.QPS, api.Burst = float32(settings.QPS), settings.Burst
	log.Info("watching the API server", zap.String("address", api.Host), zap.String("node", nodeName))
	source, err := watch.NewAPI(api, watch.Options{UserAgent: "kube-ipvs/" + version, Proxy: proxy, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("open the API server's client: %w", err)
	}
	return &Source{Source: source, api: api, lastContact: source.LastContact, contacts: source.Contacts, lastErrors: source.LastError}, nil
}

// run runs the source until the context ends. It does not wait for a request that hangs on a token file or a credential
// plugin.
func (s *Source) run(ctx context.Context, log *zap.Logger) error {
	var failure error
	if !stopsInTime(ctx, func(ctx context.Context) { failure = s.Source.Run(ctx) }) {
		log.Warn("the source did not stop: a file or credential plugin hangs", zap.Duration("after", stopLimit))
		return nil // the goroutine may still write to failure
	}
	return failure
}
