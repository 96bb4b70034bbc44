package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sync"
	"time"

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

// Options say how to speak to the API server, and to whom about it.
type Options struct {
	// UserAgent names us to the API server, if it is not empty.
	UserAgent string
	// Proxy says whose Services are asked for.
	Proxy Proxy
	// Logger is told when a kind stops and starts being heard.
	Logger *zap.Logger
}

// timing is how long to wait for what. Only tests change it.
type timing struct {
	// dial bounds the opening of a connection. A quiet connection is asked for a sign of life after pingIdle, and given up
	// when none came for pingTimeout. (client-go's own values, 30 s and 15 s, leave a node deaf for 45 s.)
	dial, pingIdle, pingTimeout time.Duration
	// silence bounds what pings cannot see: a server that is there and says nothing. API servers send a bookmark about once
	// a minute. Ending a watch early costs little: it goes on where it stopped, without a list.
	silence time.Duration
	// opens bounds how many watches per second are opened. The reflector backs off from errors, but not from a server
	// that accepts a watch, says something and closes it.
	opens float32
	// backoff is between failures; nil means the reflector's own: from 0.8 s doubling to 30 s, and up to as much again at random.
	backoff *wait.Backoff
}

func defaultTiming() timing {
	return timing{
		dial: 10 * time.Second, pingIdle: 10 * time.Second, pingTimeout: 5 * time.Second, silence: 3 * time.Minute,
		opens: 0.5,
	}
}

// API is the source that watches the API server.
type API struct {
	*Store
	options Options
	timing  timing
	feeds   []*feed

	mu    sync.Mutex
	heard map[Kind]time.Time
	errs  map[Kind]error
}

// feed is one kind, how to ask for it, and how often.
type feed struct {
	kind           Kind
	client         rest.Interface
	resource       string
	example, list  runtime.Object // of the types that the server answers with
	labels, fields string
	opens          flowcontrol.RateLimiter
}

// NewAPI prepares to watch the API server; Run does it. The configuration is copied.
func NewAPI(config *rest.Config, options Options) (*API, error) {
	return newAPI(config, options, defaultTiming())
}

func newAPI(config *rest.Config, options Options, timing timing) (*API, error) {
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	core, discovery, err := newClients(config, options.UserAgent, timing)
	if err != nil {
		return nil, fmt.Errorf("watch the API server: %w", err)
	}
	store := NewStore()
	store.converter.proxy = options.Proxy
	return &API{
		Store:   store,
		options: options,
		timing:  timing,
		feeds:   newFeeds(core, discovery, options.Proxy, timing),
		heard:   make(map[Kind]time.Time),
		errs:    make(map[Kind]error),
	}, nil
}

// newFeeds asks for every Node, since an external address that belongs to another one must be left to it.
func newFeeds(core, discovery rest.Interface, proxy Proxy, timing timing) []*feed {
	feeds := []*feed{
		{
			kind: KindService, client: core, resource: "services", example: &v1.Service{}, list: &v1.ServiceList{},
			labels: proxy.selector(), fields: "spec.clusterIP!=" + v1.ClusterIPNone,
		},
		{
			kind: KindEndpointSlice, client: discovery, resource: "endpointslices", example: &discoveryv1.EndpointSlice{}, list: &discoveryv1.EndpointSliceList{},
			labels: proxy.selector() + ",!" + v1.IsHeadlessService,
		},
		{kind: KindNode, client: core, resource: "nodes", example: &v1.Node{}, list: &v1.NodeList{}},
	}
	for _, f := range feeds {
		f.opens = flowcontrol.NewTokenBucketRateLimiter(timing.opens, 5)
	}
	return feeds
}

// Run watches until the context ends. It never gives up, and while the API server is away the model stays as it was.
func (a *API) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range a.feeds {
		reflector := cache.NewReflectorWithOptions(a.listWatch(f), f.example, &sink{a.Store, f.kind}, cache.ReflectorOptions{
			Name: "kube-ipvs", TypeDescription: string(f.kind), Backoff: a.timing.backoff, Clock: clockUntil{ctx: ctx},
		})
		wg.Go(func() { reflector.RunWithContext(ctx) })
	}
	wg.Wait()
	return nil
}

// LastHeard is when the API server last said something about each kind: an object, a bookmark, a list, or that it will
// watch. A kind that was never heard of is missing.
func (a *API) LastHeard() map[Kind]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.heard)
}

// LastError is why a kind is not being heard. A kind that is heard is missing.
func (a *API) LastError() map[Kind]error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.errs)
}

func (a *API) hear(kind Kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[kind] = time.Now()
	if a.errs[kind] != nil {
		delete(a.errs, kind)
		a.options.Logger.Info("the API server answers again", zap.String("kind", string(kind)))
	}
}

// fail notes why a kind is not being heard. The log gets the first of a row of failures; the last one is in LastError.
func (a *API) fail(ctx context.Context, kind Kind, err error) {
	if ctx.Err() != nil || isProtocol(err) {
		return
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err // without the URL, which is mostly selectors
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.errs[kind] == nil {
		a.options.Logger.Warn("the API server does not answer; what is programmed stays", zap.String("kind", string(kind)), zap.Error(err))
	}
	a.errs[kind] = err
}

// isProtocol tells errors by which a healthy server steers its clients: the version asked for is too old or too new, or
// it is too old to stream lists. The reflector's next request does it the other way.
func isProtocol(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}
