package telemetry

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// What the Events say. Problems have no codes to make several reasons of, and reading one out of a text for humans would break
// with the next better wording.
const (
	eventController   = "kube-ipvs"
	eventAction       = "SyncService"
	reasonProblem     = "ServiceProblem"
	reasonSolved      = "ServiceProblemSolved"
	maxNote           = 1024 // bytes, as the API wants it
	maxInstance       = 128
	maxEventsWaiting  = 1000
	eventsPerSecond   = 1 // requests; an Event takes two
	eventsBurst       = 20
	eventTimeout      = 10 * time.Second
	eventAttempts     = 3
	eventRetry        = 5 * time.Second
	eventSpread       = 5 * time.Second
	eventNamesStayFor = 10 * time.Minute
)

// events tells the owners of Services what is wrong with them.
//
// client-go has a recorder for Events, but it needs the clientset of all API groups, which would double the binary; and it
// gives every node's Event a name of its own. What is wrong with a Service is mostly wrong on every node. Here all nodes give
// equal Events equal names, so that the first to come posts it and the others learn that it is known.
type events struct {
	core, events rest.Interface
	node         string
	log          *zap.Logger
	metrics      *metrics
	spread       time.Duration
	retry        time.Duration

	// told is what was wrong when last heard. Only the loop uses it.
	told map[problemSource][]model.Problem

	mu    sync.Mutex
	queue []notice
	// waiting are the notices in the queue.
	waiting map[notice]struct{}
	wake    chan struct{}

	// warned is true once a failure was logged. Only the sender uses it.
	warned bool
}

// problemSource is an object as its problems are reported: those found by compiling, or those found by reading it.
type problemSource struct {
	read   bool
	object string
}

// notice is an Event to be.
type notice struct {
	problem model.Problem
	solved  bool
}

func newEvents(cfg Config, m *metrics) (*events, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, eventsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	config := rest.CopyConfig(cfg.API)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsBurst)
	config.UserAgent = "kube-ipvs/" + cfg.Version
	e := &events{
		node: clip(cfg.Node, maxInstance), log: cfg.Log, metrics: m, spread: eventSpread, retry: eventRetry,
		told: map[problemSource][]model.Problem{}, waiting: map[notice]struct{}{}, wake: make(chan struct{}, 1),
	}
	var err error
	if e.core, err = restClient(config, "/api", v1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	e.events, err = restClient(config, "/apis", eventsv1.SchemeGroupVersion)
	return e, err
}

func restClient(config *rest.Config, path string, group schema.GroupVersion) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = path, &group
	return rest.RESTClientFor(config)
}

// observe notes which problems have come and gone since they were last heard of.
func (e *events) observe(r *agent.Report) {
	for id, problems := range r.Problems {
		e.compare(problemSource{object: id.String()}, problems)
	}
	for object, problems := range r.Unreadable {
		e.compare(problemSource{read: true, object: object}, problems)
	}
}

func (e *events) compare(source problemSource, now []model.Problem) {
	before := e.told[source]
	for _, p := range now {
		if !slices.Contains(before, p) {
			e.enqueue(notice{problem: p})
		}
	}
	for _, p := range before {
		if !slices.ContainsFunc(now, func(other model.Problem) bool { return samePlace(p, other) }) {
			e.enqueue(notice{problem: p, solved: true})
		}
	}
	if e.told[source] = now; len(now) == 0 {
		delete(e.told, source)
	}
}

// samePlace says whether a problem is what another has become.
func samePlace(p, q model.Problem) bool {
	return p.Service == q.Service && p.Object == q.Object && p.Field == q.Field
}

// enqueue never waits. What came and went before it could be told is not told at all.
func (e *events) enqueue(n notice) {
	if n.problem.Service == (model.ServiceID{}) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	opposite := notice{problem: n.problem, solved: !n.solved}
	if _, ok := e.waiting[opposite]; ok {
		delete(e.waiting, opposite)
		e.queue = slices.DeleteFunc(e.queue, func(q notice) bool { return q == opposite })
		return
	}
	if _, ok := e.waiting[n]; ok {
		return
	}
	if len(e.queue) >= maxEventsWaiting {
		e.metrics.events.WithLabelValues(resultDropped).Inc()
		return
	}
	e.queue = append(e.queue, n)
	e.waiting[n] = struct{}{}
	select {
	case e.wake <- struct{}{}:
	default: // told already
	}
}

func (e *events) next() (notice, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return notice{}, false
	}
	n := e.queue[0]
	e.queue = slices.Delete(e.queue, 0, 1)
	delete(e.waiting, n)
	return n, true
}

// run sends until the context ends. What waits then is lost: the next agent finds the same problems again.
func (e *events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		// All nodes hear of a problem at the same moment.
		if e.spread > 0 && !sleep(ctx, rand.N(e.spread)) {
			return
		}
		for n, ok := e.next(); ok && ctx.Err() == nil; n, ok = e.next() {
			e.send(ctx, n)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// send posts an Event, and tries again what may work later.
func (e *events) send(ctx context.Context, n notice) {
	for attempt := 1; ; attempt++ {
		result, err := e.post(ctx, n)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			e.metrics.events.WithLabelValues(result).Inc()
			return
		}
		if attempt == eventAttempts || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
			e.metrics.events.WithLabelValues(resultFailed).Inc()
			e.logFailure(n, err)
			return
		}
		if !sleep(ctx, e.retry) {
			return
		}
	}
}

// logFailure warns once: the problem itself is in the log anyway.
func (e *events) logFailure(n notice, err error) {
	level := zap.WarnLevel
	if e.warned {
		level = zap.DebugLevel
	}
	e.warned = true
	e.log.Log(level, "an Event cannot be posted (this agent may need to list services, and to create events in events.k8s.io)",
		zap.Stringer("service", n.problem.Service), zap.Error(err))
}

// post asks for the Service first: "kubectl describe" finds only Events that know the object's UID, and a Service that is gone
// needs no Event.
func (e *events) post(ctx context.Context, n notice) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	id := n.problem.Service
	var found v1.ServiceList
	// A list, because watchers of Services may list them, but need not be allowed to get one.
	err := e.core.Get().Namespace(id.Namespace).Resource("services").Param("fieldSelector", "metadata.name="+id.Name).Do(ctx).Into(&found)
	if err != nil {
		return "", fmt.Errorf("look for Service %s: %w", id, err)
	}
	if len(found.Items) == 0 {
		return resultDropped, nil
	}
	event := newEvent(n, &found.Items[0], e.node, time.Now())
	err = e.events.Post().Namespace(id.Namespace).Resource("events").Body(event).Do(ctx).Error()
	switch {
	case apierrors.IsAlreadyExists(err):
		return resultKnown, nil
	case err != nil:
		return "", fmt.Errorf("post an Event on Service %s: %w", id, err)
	}
	return resultPosted, nil
}

func newEvent(n notice, svc *v1.Service, node string, now time.Time) *eventsv1.Event {
	kind, reason, note := v1.EventTypeWarning, reasonProblem, n.problem.String()
	if n.solved {
		kind, reason, note = v1.EventTypeNormal, reasonSolved, "solved: "+note
	}
	note = clip(note, maxNote)
	return &eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{Kind: "Event", APIVersion: eventsv1.SchemeGroupVersion.String()},
		ObjectMeta:          metav1.ObjectMeta{Namespace: svc.Namespace, Name: eventName(svc, kind, note, now)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: eventController,
		ReportingInstance:   node,
		Action:              eventAction,
		Reason:              reason,
		Regarding: v1.ObjectReference{
			Kind: "Service", APIVersion: "v1", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
		},
		Note: note,
		Type: kind,
	}
}

// eventName is the same on every node, and another after a while: Events outlive problems, and a problem may come back.
func eventName(svc *v1.Service, kind, note string, now time.Time) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%d", kind, svc.UID, note, now.Unix()/int64(eventNamesStayFor/time.Second))
	return fmt.Sprintf("%s.%016x", svc.Name, h.Sum64())
}

// clip shortens a text to a number of bytes, and leaves it valid.
func clip(s string, most int) string {
	const dots = "..."
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len(dots)], "") + dots
	}
	return s
}
