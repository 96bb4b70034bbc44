package watch

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// listWatch is how the reflector asks for a kind. Every request ends in bounded time, and leaves a trace in LastHeard or
// LastError: the reflector itself retries a refused connection for hours without a word.
func (a *API) listWatch(f *feed) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := a.list(ctx, f, options)
			if err != nil {
				a.fail(ctx, f.kind, err)
				return nil, err
			}
			a.hear(f.kind)
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := a.watch(ctx, f, options)
			if err != nil {
				a.fail(ctx, f.kind, err)
			}
			return w, err
		},
	}
}

func (a *API) list(ctx context.Context, f *feed, options metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timing.silence)
	defer cancel()
	list, err := f.request(&options).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	// The reflector would take an empty list of anything for "there are none of these".
	if got, want := reflect.TypeOf(list), reflect.TypeOf(f.list); got != want {
		return nil, fmt.Errorf("list %s: the server answered with a %v", f.resource, got)
	}
	return list, nil
}

func (a *API) watch(ctx context.Context, f *feed, options metav1.ListOptions) (watch.Interface, error) {
	if err := f.opens.Wait(ctx); err != nil {
		return nil, err
	}
	// The context lives as long as the watch, so that a deadline for its opening has to be a timer.
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(a.timing.silence, cancel)
	options.Watch = true
	inner, err := f.request(&options).Watch(ctx)
	if !late.Stop() {
		err = fmt.Errorf("no answer for %v", a.timing.silence)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{
		inner: inner, cancel: cancel, result: make(chan watch.Event), stopped: make(chan struct{}),
		heard:  func() { a.hear(f.kind) },
		failed: func(err error) { a.fail(ctx, f.kind, fmt.Errorf("watch %s: %w", f.resource, err)) },
	}
	go s.run(a.timing.silence)
	return s, nil
}

func (f *feed) request(options *metav1.ListOptions) *rest.Request {
	options.LabelSelector, options.FieldSelector = f.labels, f.fields
	return f.client.Get().Resource(f.resource).VersionedParams(options, metav1.ParameterCodec).
		// The client's retries are silent, and up to ten of them multiply every timeout. The reflector retries, with backoff.
		MaxRetries(0)
}

// stream is a watch that ends when nothing was heard for too long. To the reflector that looks like a server that closed the
// watch in good order: it opens the next one where this one stopped.
type stream struct {
	inner   watch.Interface
	cancel  context.CancelFunc
	result  chan watch.Event
	stopped chan struct{}
	stop    sync.Once
	heard   func()
	failed  func(error)
}

func (s *stream) ResultChan() <-chan watch.Event { return s.result }

func (s *stream) Stop() {
	s.stop.Do(func() {
		close(s.stopped)
		s.cancel()
		s.inner.Stop()
	})
}

func (s *stream) run(silence time.Duration) {
	defer close(s.result)
	timer := time.NewTimer(silence)
	defer timer.Stop()
	start, quiet := time.Now(), true
	for {
		select {
		case <-s.stopped:
			return
		case <-timer.C:
			s.failed(fmt.Errorf("silent for %v", silence))
			return
		case event, ok := <-s.inner.ResultChan():
			if !ok {
				// The client passes off many failures to connect as a watch that is over at once.
				if quiet && time.Since(start) < time.Second {
					s.failed(errors.New("the connection failed, or was closed at once"))
				}
				return
			}
			quiet = false
			if event.Type == watch.Error {
				s.failed(apierrors.FromObject(event.Object))
			} else {
				s.heard()
			}
			select {
			case s.result <- event:
			case <-s.stopped:
				return
			}
			timer.Reset(silence)
		}
	}
}

// sink is the reflector's view of the Store. Objects become records on the way in, in the reflector's temporary store too:
// that is where a streamed list waits for its end.
type sink struct {
	store *Store
	kind  Kind
}

var _ cache.TransformingStore = (*sink)(nil)

func (s *sink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.store.convert(obj, "") }
}

func (s *sink) Add(obj any) error { return s.Update(obj) }

func (s *sink) Update(obj any) error {
	r, err := s.store.convert(obj, "")
	if err != nil {
		return err
	}
	s.store.apply(r)
	return nil
}

func (s *sink) Delete(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("delete %T: has no name", obj)
	}
	s.store.Delete(s.kind, o.GetNamespace(), o.GetName())
	return nil
}

func (s *sink) Replace(list []any, _ string) error {
	records := make([]*record, 0, len(list))
	for _, obj := range list {
		r, err := s.store.convert(obj, "")
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	s.store.replace(map[Kind][]*record{s.kind: records})
	return nil
}

// Resync is part of the reflector's interface and never called: there is no second copy that could have drifted.
func (s *sink) Resync() error { return nil }

// clockUntil is the real clock, except that its waits end with the context. The reflector sleeps through some of its
// backoffs without looking at the context, and would hold up the end of the process for a minute.
type clockUntil struct {
	clock.RealClock
	ctx context.Context
}

func (c clockUntil) After(d time.Duration) <-chan time.Time {
	done := make(chan time.Time, 1)
	ring := func() {
		select {
		case done <- time.Now():
		default: // has rung
		}
	}
	forget := context.AfterFunc(c.ctx, ring)
	time.AfterFunc(d, func() {
		forget()
		ring()
	})
	return done
}
