package telemetry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// run sends until the context ends. It drops the notices still in the queue: the next agent finds the same problems again.
func (e *events) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		// All nodes find a problem at the same time. Spread their requests, so that one node posts the Event and the others find it.
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

// logFailure warns only once, because the problem itself is already in the log.
func (e *events) logFailure(n notice, err error) {
	level := zap.WarnLevel
	if e.warned {
		level = zap.DebugLevel
	}
	e.warned = true
	e.log.Log(level, "could not post an Event; the agent needs permission to list services and to create events in events.k8s.io",
		zap.Stringer("object", n.problem.Object), zap.Error(err))
}

func (e *events) post(ctx context.Context, n notice) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	about := nodeObject(e.node)
	if !n.ofNode() {
		svc, err := e.service(ctx, n.problem.Service)
		if err != nil {
			return "", err
		}
		if svc == nil { // the Service was deleted, so no Event is needed
			return resultDropped, nil
		}
		about = serviceObject(svc)
	}
	event := newEvent(n, about, e.node, time.Now())
	err := e.events.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	switch {
	case apierrors.IsAlreadyExists(err):
		return resultDuplicate, nil
	case err != nil:
		return "", fmt.Errorf("post an Event on %s %s: %w", about.Kind, about.Name, err)
	}
	return resultPosted, nil
}

// service returns nil for a Service that does not exist. It uses a list with a field selector, because an agent that watches Services has
// permission to list them, but not always to get a single Service.
func (e *events) service(ctx context.Context, id model.ServiceID) (*v1.Service, error) {
	var found v1.ServiceList
	err := e.core.Get().Namespace(id.Namespace).Resource("services").Param("fieldSelector", "metadata.name="+id.Name).Do(ctx).Into(&found)
	if err != nil {
		return nil, fmt.Errorf("look for Service %s: %w", id, err)
	}
	if len(found.Items) == 0 {
		return nil, nil
	}
	return &found.Items[0], nil
}
