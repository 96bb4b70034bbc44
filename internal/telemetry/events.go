package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	maxEventsWaiting = 1000
	eventsPerSecond  = 1 // requests; an Event for a Service needs two
	eventsBurst      = 20
	eventTimeout     = 10 * time.Second
	eventAttempts    = 3
	eventRetry       = 5 * time.Second
	eventSpread      = 5 * time.Second
)

// events posts Kubernetes Events: on a Service for its problems, on the Node for the problems of this node.
//
// Most problems of a Service exist on every node. All nodes derive the same name for the same Event, so the first node posts it and
// the others find that it exists. If a problem exists on one node only, the Event's note names the node, so the Event has a
// different name. docs/decisions/0006-events.md explains why this does not use client-go's recorder.
type events struct {
	core, events rest.Interface
	node         string
	log          *zap.Logger
	metrics      *metrics
	spread       time.Duration
	retry        time.Duration

	// foreign contains the foreign virtual servers in the last Report. failing is the problem posted while syncs keep failing,
	// or nil. Only the loop uses both fields.
	foreign map[kernel.ServerKey]model.ServicePortRef
	failing *model.Problem
	// unanswered contains the Services whose health checks fail on this node. Only the goroutine of the health check ports uses it.
	unanswered map[model.ServiceID]model.Problem

	mu    sync.Mutex
	queue *fairQueue
	wake  chan struct{}

	// warned is true after the first failure has been logged. Only the sender uses it.
	warned bool
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
		node: cfg.Node, log: cfg.Log, metrics: m, spread: eventSpread, retry: eventRetry,
		foreign: map[kernel.ServerKey]model.ServicePortRef{}, unanswered: map[model.ServiceID]model.Problem{},
		queue: newFairQueue(maxEventsWaiting), wake: make(chan struct{}, 1),
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

func (e *events) started(version string, notServed map[inet.Family]error) {
	start := e.aboutNode("kube-ipvs " + version + " has started")
	e.enqueue(notice{topic: aboutStart, problem: start, resolved: true})
	for _, family := range slices.Sorted(maps.Keys(notServed)) {
		e.enqueue(notice{topic: aboutFamily, problem: e.aboutNode(family.String() + " Services are not served on this node: " + notServed[family].Error())})
	}
}

func (e *events) aboutNode(reason string) model.Problem {
	return model.Problem{Object: model.NodeRef(e.node), Reason: reason}
}

// observe queues an Event for each problem that is new or resolved. failing is true once syncs have been failing for a long time.
func (e *events) observe(r *agent.Report, failing bool) {
	for _, change := range r.ProblemChanges {
		topic := aboutService
		if change.Object == model.NodeRef(e.node) {
			topic = aboutNode
		}
		for _, p := range change.Added {
			e.enqueue(notice{topic: topic, problem: p})
		}
		for _, p := range change.Resolved {
			e.enqueue(notice{topic: topic, problem: p, resolved: true})
		}
	}
	e.observeForeign(r.Foreign)
	e.observeFailing(failing, r.Err)
}

// observeForeign reports virtual servers of other programs that use a Service's address and port.
func (e *events) observeForeign(now map[kernel.ServerKey]model.ServicePortRef) {
	for _, key := range slices.SortedFunc(maps.Keys(now), kernel.ServerKey.Compare) {
		if _, known := e.foreign[key]; !known {
			e.enqueue(notice{topic: aboutForeign, problem: e.foreignServer(key, now[key])})
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(e.foreign), kernel.ServerKey.Compare) {
		if _, exists := now[key]; !exists {
			e.enqueue(notice{topic: aboutForeign, problem: e.foreignServer(key, e.foreign[key]), resolved: true})
		}
	}
	e.foreign = maps.Clone(now)
}

func (e *events) foreignServer(key kernel.ServerKey, owner model.ServicePortRef) model.Problem {
	return model.Problem{
		Object: owner.Service.Ref(), Service: owner.Service,
		Reason: fmt.Sprintf("not served at %s/%s on node %s: a virtual server of another program has this address and port",
			key.Addr, key.Protocol, e.node),
		Remedy: fmt.Sprintf("delete it on the node (ipvsadm -D %s) or give the Service another address", key),
	}
}

// observeFailing reports once that syncs keep failing, with the current error, and once that they succeed again.
func (e *events) observeFailing(failing bool, err error) {
	switch {
	case !failing && e.failing != nil:
		e.enqueue(notice{topic: aboutFailing, problem: *e.failing, resolved: true})
		e.failing = nil
	case failing && e.failing == nil:
		p := e.aboutNode(fmt.Sprintf("syncs keep failing, so Services on this node may be out of date; retrying; last error: %v", err))
		e.enqueue(notice{topic: aboutFailing, problem: p})
		e.failing = &p
	}
}

// observeHealthPort reports that the health checks of a Service fail on this node or, if err is nil, that they have recovered.
func (e *events) observeHealthPort(id model.ServiceID, err error) {
	before, known := e.unanswered[id]
	if err == nil {
		if known {
			delete(e.unanswered, id)
			e.enqueue(notice{topic: aboutHealthPort, problem: before, resolved: true})
		}
		return
	}
	e.unanswered[id] = model.Problem{
		Object: id.Ref(), Service: id, Field: "spec.healthCheckNodePort",
		Reason: fmt.Sprintf("node %s does not answer health checks, so load balancers will not use it: %v", e.node, err),
	}
	e.enqueue(notice{topic: aboutHealthPort, problem: e.unanswered[id]})
}

// enqueue never blocks. A notice and its opposite cancel each other out if neither has been sent.
func (e *events) enqueue(n notice) {
	if n.ofNode() && n.problem.Object != model.NodeRef(e.node) {
		return // the object is a file, or another Node whose own agent reports the problem
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if opposite := n.opposite(); e.queue.has(opposite) {
		e.queue.remove(opposite)
		return
	}
	if e.queue.has(n) {
		return
	}
	if !e.queue.add(n) {
		e.metrics.events.WithLabelValues(resultDropped).Inc()
	}
	select {
	case e.wake <- struct{}{}:
	default: // already awake
	}
}

func (e *events) next() (notice, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.queue.take()
}
