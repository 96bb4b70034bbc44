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
	eventsPerSecond  = 1 // requests; an Event on a Service takes two
	eventsBurst      = 20
	eventTimeout     = 10 * time.Second
	eventAttempts    = 3
	eventRetry       = 5 * time.Second
	eventSpread      = 5 * time.Second
)

// events tells the owners of Services what is wrong with them, and the owners of the node what is wrong with it.
//
// client-go has a recorder for Events, but it needs the clientset of all API groups, which would double the binary; and it
// gives every node's Event a name of its own. What is wrong with a Service is mostly wrong on every node. Here all nodes give
// equal Events equal names, so that the first to come posts it and the others learn that it is known. What is true of one node
// only names the node in its text, and is therefore another Event.
type events struct {
	core, events rest.Interface
	node         string
	log          *zap.Logger
	metrics      *metrics
	spread       time.Duration
	retry        time.Duration

	// told is what was wrong when last heard, foreign the places where others stood. Only the loop uses them.
	told    map[origin][]model.Problem
	foreign map[kernel.ServerKey]model.ServicePortRef
	// deaf are the Services whose health checks are not answered. Only the health check ports use it.
	deaf map[model.ServiceID]model.Problem

	mu    sync.Mutex
	queue []notice
	// waiting are the notices in the queue.
	waiting map[notice]struct{}
	wake    chan struct{}

	// warned is true once a failure was logged. Only the sender uses it.
	warned bool
}

// finder is the part of the agent that found a problem. Each reports all that it knows of an object at once, so that what it
// leaves out is solved.
type finder uint8

const (
	foundByReading   finder = iota // the watch package, when it parsed the object
	foundByCompiling               // the compile package, when it asked what the object means on this node
	foundByPasses                  // the loop, when its writes failed
)

// origin is where problems come from: a finder, and the object it found them with.
type origin struct {
	by     finder
	object model.ObjectRef
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
		told: map[origin][]model.Problem{}, foreign: map[kernel.ServerKey]model.ServicePortRef{}, deaf: map[model.ServiceID]model.Problem{},
		waiting: map[notice]struct{}{}, wake: make(chan struct{}, 1),
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

// started tells that the agent has started, and which families this node does not serve.
func (e *events) started(version string, notServed map[inet.Family]string) {
	start := e.aboutNode("kube-ipvs " + version + " has started")
	e.enqueue(notice{topic: aboutStart, problem: start, solved: true})
	for _, family := range slices.Sorted(maps.Keys(notServed)) {
		e.enqueue(notice{topic: aboutFamily, problem: e.aboutNode(family.String() + " Services are not served on this node: " + notServed[family])})
	}
}

func (e *events) aboutNode(reason string) model.Problem {
	return model.Problem{Object: model.NodeRef(e.node), Reason: reason}
}

// observe notes what has come and gone since it was last heard of. failing says that passes have been failing for long.
func (e *events) observe(r *agent.Report, failing bool) {
	for id, problems := range r.Problems {
		e.compare(aboutService, origin{foundByCompiling, id.Ref()}, problems)
	}
	for object, problems := range r.Unreadable {
		topic := aboutService
		if object == model.NodeRef(e.node) {
			topic = aboutNode
		}
		e.compare(topic, origin{foundByReading, object}, problems)
	}
	e.compare(aboutNode, origin{foundByCompiling, model.NodeRef(e.node)}, r.NodeProblems)
	e.observeForeign(r.Foreign)
	e.observeFailing(failing, r.Err)
}

func (e *events) compare(t topic, from origin, now []model.Problem) {
	before := e.told[from]
	for _, p := range now {
		if !slices.Contains(before, p) {
			e.enqueue(notice{topic: t, problem: p})
		}
	}
	for _, p := range before {
		if !slices.ContainsFunc(now, func(other model.Problem) bool { return samePlace(p, other) }) {
			e.enqueue(notice{topic: t, problem: p, solved: true})
		}
	}
	if e.told[from] = now; len(now) == 0 {
		delete(e.told, from)
	}
}

// samePlace says whether a problem is what another has become.
func samePlace(p, q model.Problem) bool {
	return p.Service == q.Service && p.Object == q.Object && p.Field == q.Field
}

// observeForeign tells of other people's virtual servers in the place of ours, which a Report lists whole.
func (e *events) observeForeign(now map[kernel.ServerKey]model.ServicePortRef) {
	for _, key := range slices.SortedFunc(maps.Keys(now), kernel.ServerKey.Compare) {
		if _, known := e.foreign[key]; !known {
			e.enqueue(notice{topic: aboutForeign, problem: e.foreignServer(key, now[key])})
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(e.foreign), kernel.ServerKey.Compare) {
		if _, stands := now[key]; !stands {
			e.enqueue(notice{topic: aboutForeign, problem: e.foreignServer(key, e.foreign[key]), solved: true})
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

// observeFailing tells once that passes fail, with the failure of that moment, and that they work again.
func (e *events) observeFailing(failing bool, err error) {
	from := origin{foundByPasses, model.NodeRef(e.node)}
	switch {
	case !failing:
		e.compare(aboutFailing, from, nil)
	case e.told[from] == nil:
		e.compare(aboutFailing, from, []model.Problem{e.aboutNode(fmt.Sprintf(
			"Services are not programmed as the cluster wants them: passes keep failing, the last one with: %v; "+
				"the agent goes on trying, and its log says more", err))})
	}
}

// observeHealthPort tells why the health checks of a Service are not answered on this node; no reason means that they are.
func (e *events) observeHealthPort(id model.ServiceID, why string) {
	before, known := e.deaf[id]
	if why == "" {
		if known {
			delete(e.deaf, id)
			e.enqueue(notice{topic: aboutHealthPort, problem: before, solved: true})
		}
		return
	}
	e.deaf[id] = model.Problem{
		Object: id.Ref(), Service: id, Field: "spec.healthCheckNodePort",
		Reason: fmt.Sprintf("node %s does not answer the health checks of load balancers, so that they will not use it: %s", e.node, why),
	}
	e.enqueue(notice{topic: aboutHealthPort, problem: e.deaf[id]})
}

// enqueue never waits. What came and went before it could be told is not told at all.
func (e *events) enqueue(n notice) {
	if n.ofNode() && n.problem.Object != model.NodeRef(e.node) {
		return // a file, or a Node of which its own agent tells
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if opposite := n.opposite(); e.isWaiting(opposite) {
		delete(e.waiting, opposite)
		e.queue = slices.DeleteFunc(e.queue, func(q notice) bool { return q == opposite })
		return
	}
	if e.isWaiting(n) {
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

func (e *events) isWaiting(n notice) bool {
	_, ok := e.waiting[n]
	return ok
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
