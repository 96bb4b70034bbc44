package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
)

// Options configure the API source.
type Options struct {
	// UserAgent identifies the agent to the API server; empty for client-go's default.
	UserAgent string
	Proxy     Proxy
	// Logger receives an entry when the requests for a kind start to fail, and when they succeed again.
	Logger *zap.Logger
}

// timing contains timeouts and rates, which only tests change.
type timing struct {
	// dial is the timeout for opening a connection. The client sends a ping after pingIdle without data, and closes the connection if no
	// response arrives within pingTimeout. Together they add up to client-go's default, because an overloaded server may need that long.
	// With shorter times, all nodes would reconnect to it simultaneously.
	dial, pingIdle, pingTimeout time.Duration
	// gone is how long the server's kernel may leave packets unacknowledged. A kernel acknowledges packets even if the
	// program is busy, so after this time the machine or the path to it has failed.
	gone time.Duration
	// silence is how long a server may respond to pings but send no data. API servers send a bookmark about once a minute.
	// Ending a watch early is cheap: the next watch continues where it stopped, without a list.
	silence time.Duration
	// watchRate limits the number of watches opened per second. The reflector backs off after errors, but not if a server
	// accepts a watch, sends an event and closes it.
	watchRate float32
	// backoff is the delay after failures. Its maximum is between 5 and 10 s, so that a node follows changes soon after an
	// outage. The maximum of the reflector's own backoff is between 30 and 60 s.
	backoff wait.Backoff
}

func defaultTiming() timing {
	return timing{
		dial: 10 * time.Second, pingIdle: 10 * time.Second, pingTimeout: 35 * time.Second, gone: 20 * time.Second, silence: 3 * time.Minute,
		watchRate: 0.5,
		backoff:   wait.Backoff{Duration: 800 * time.Millisecond, Cap: 5 * time.Second, Factor: 2, Jitter: 1, Steps: 5},
	}
}

// API is the source that watches the API server.
type API struct {
	*Store
	options  Options
	timing   timing
	contacts *contacts
	feeds    []*feed

	mu          sync.Mutex
	lastContact map[model.Kind]time.Time
	errs        map[model.Kind]error
}

type feed struct {
	kind           model.Kind
	client         rest.Interface
	resource       string
	example, list  runtime.Object // objects of the types that the server returns
	labels, fields string
	watchRate      flowcontrol.RateLimiter
}

// NewAPI returns a source for an API server. Run starts it. The configuration is copied.
func NewAPI(config *rest.Config, options Options) (*API, error) {
	return newAPI(config, options, defaultTiming())
}

func newAPI(config *rest.Config, options Options, timing timing) (*API, error) {
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	store := NewStore(options.Proxy)
	contacts := newContacts(store.setAPIServer)
	core, discovery, err := newClients(config, options.UserAgent, timing, contacts)
	if err != nil {
		return nil, fmt.Errorf("watch the API server: %w", err)
	}
	return &API{
		Store:       store,
		contacts:    contacts,
		options:     options,
		timing:      timing,
		feeds:       newFeeds(core, discovery, options.Proxy, timing),
		lastContact: make(map[model.Kind]time.Time),
		errs:        make(map[model.Kind]error),
	}, nil
}

// The agent watches all Nodes, because an external address that belongs to another node must not be served on this node.
func newFeeds(core, discovery rest.Interface, proxy Proxy, timing timing) []*feed {
	feeds := []*feed{
		{
			kind: model.KindService, client: core, resource: "services", example: &v1.Service{}, list: &v1.ServiceList{},
			labels: proxy.selector(), fields: "spec.clusterIP!=" + v1.ClusterIPNone,
		},
		{
			kind: model.KindEndpointSlice, client: discovery, resource: "endpointslices", example: &discoveryv1.EndpointSlice{}, list: &discoveryv1.EndpointSliceList{},
			labels: proxy.selector() + ",!" + v1.IsHeadlessService,
		},
		{kind: model.KindNode, client: core, resource: "nodes", example: &v1.Node{}, list: &v1.NodeList{}},
	}
	for _, f := range feeds {
		f.watchRate = flowcontrol.NewTokenBucketRateLimiter(timing.watchRate, 5)
	}
	return feeds
}

// Run watches until the context ends. It retries forever. While the API server is unavailable, the model does not change.
func (a *API) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range a.feeds {
		backoff := a.timing.backoff // each reflector has its own counter
		reflector := cache.NewReflectorWithOptions(a.listWatch(f), f.example, &sink{a.Store, f.kind, a.options.Logger}, cache.ReflectorOptions{
			Name: "kube-ipvs", TypeDescription: string(f.kind), Backoff: &backoff, Clock: clockUntil{ctx: ctx},
		})
		wg.Go(func() { reflector.RunWithContext(ctx) })
	}
	wg.Go(func() { a.contacts.refresh(ctx, resolveInterval) })
	wg.Wait()
	return nil
}

// LastContact returns when the API server last sent a list, an event or a bookmark for each kind. A kind without messages has
// no entry.
func (a *API) LastContact() map[model.Kind]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.lastContact)
}

// LastError returns the last error of each kind whose requests are failing. A kind whose requests succeed has no
// entry.
func (a *API) LastError() map[model.Kind]error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.errs)
}

func (a *API) succeed(kind model.Kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastContact[kind] = time.Now()
	if a.errs[kind] != nil {
		delete(a.errs, kind)
		a.options.Logger.Info("API server available again", zap.String("kind", string(kind)))
	}
}

// fail logs only the first of several consecutive failures. LastError returns the latest.
func (a *API) fail(ctx context.Context, kind model.Kind, err error) {
	if ctx.Err() != nil || isProtocol(err) {
		return
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // drop the URL, which consists mostly of selectors
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.errs[kind] == nil {
		a.options.Logger.Warn("watching the API server failed; retrying with the kernel state unchanged", zap.String("kind", string(kind)), zap.Error(err))
	}
	a.errs[kind] = err
}

// isProtocol reports whether an error is part of the normal protocol: the requested version is too old or too new, or the
// server cannot stream lists. In these cases, the reflector sends a different request.
func isProtocol(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}
