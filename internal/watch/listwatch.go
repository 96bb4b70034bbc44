package watch

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Every request has a timeout and updates LastContact or LastError, because the reflector retries a refused connection for hours without
// reporting it.
func (a *API) listWatch(f *feed) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := a.list(ctx, f, options)
			if err != nil {
				a.fail(ctx, f.kind, err)
				return nil, err
			}
			a.succeed(f.kind)
			a.learnVersion(ctx, f)
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := a.watch(ctx, f, options)
			if err != nil {
				a.fail(ctx, f.kind, err)
				return nil, err
			}
			a.learnVersion(ctx, f)
			return w, nil
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
	// The reflector would accept an empty list of a different type as proof that no objects of this kind exist.
	if got, want := reflect.TypeOf(list), reflect.TypeOf(f.list); got != want {
		return nil, fmt.Errorf("list %s: the server returned a %v", f.resource, got)
	}
	return list, nil
}

func (a *API) watch(ctx context.Context, f *feed, options metav1.ListOptions) (watch.Interface, error) {
	if err := f.watchRate.Wait(ctx); err != nil {
		return nil, err
	}
	if options.SendInitialEvents == nil {
		if err := a.checkVersion(ctx, f, options.ResourceVersion); err != nil {
			return nil, err
		}
	}
	// The context must live as long as the watch, so a timer limits the time to open the watch.
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(a.timing.silence, cancel)
	options.Watch = true
	inner, err := f.request(&options).Watch(ctx)
	if !late.Stop() {
		if err == nil {
			inner.Stop() // otherwise its goroutine would wait for a reader
		}
		err = fmt.Errorf("no response within %v", a.timing.silence)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	s := &stream{
		inner: inner, cancel: cancel, result: make(chan watch.Event), stopped: make(chan struct{}),
		received: func() { a.succeed(f.kind) },
		failed:   func(err error) { a.fail(ctx, f.kind, fmt.Errorf("watch %s: %w", f.resource, err)) },
	}
	go s.run(a.timing.silence)
	return s, nil
}

func (f *feed) request(options *metav1.ListOptions) *rest.Request {
	options.LabelSelector, options.FieldSelector = f.labels, f.fields
	return f.client.Get().Resource(f.resource).VersionedParams(options, metav1.ParameterCodec).
		// The client's own retries are silent, and up to ten retries multiply every timeout. The reflector retries with
		// backoff.
		MaxRetries(0)
}

// stream is a watch that ends if the server is silent for too long. To the reflector, the server seems to have closed the watch
// normally, so the next watch continues at the same version.
type stream struct {
	inner    watch.Interface
	cancel   context.CancelFunc
	result   chan watch.Event
	stopped  chan struct{}
	stop     sync.Once
	received func()
	failed   func(error)
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
			s.failed(fmt.Errorf("no event for %v", silence))
			return
		case event, ok := <-s.inner.ResultChan():
			if !ok {
				// The client reports many connection failures as a watch that ends immediately.
				if quiet && time.Since(start) < time.Second {
					s.failed(errors.New("connection failed or closed immediately"))
				}
				return
			}
			quiet = false
			if event.Type == watch.Error {
				s.failed(apierrors.FromObject(event.Object))
			} else {
				s.received()
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

// sink implements the reflector's store interface for the Store. The Transformer parses objects for the reflector's temporary store,
// which holds a streamed list until it is complete.
type sink struct {
	store *Store
	kind  model.Kind
	log   *zap.Logger
}

var _ cache.TransformingStore = (*sink)(nil)

func (s *sink) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.store.Convert(obj, "") }
}

func (s *sink) Add(obj any) error { return s.Update(obj) }

func (s *sink) Update(obj any) error {
	r, err := s.store.Convert(obj, "")
	if err != nil {
		return err
	}
	s.store.apply(r)
	return nil
}

func (s *sink) Delete(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("delete %T: it has no name", obj)
	}
	s.store.apply(newRecord(s.kind, o.GetNamespace(), o.GetName()))
	return nil
}

func (s *sink) Replace(list []any, _ string) error {
	records := make([]*Record, 0, len(list))
	for _, obj := range list {
		r, err := s.store.Convert(obj, "")
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	logHolding(s.log, s.kind, s.store.relist(s.kind, records))
	return nil
}

// Resync is part of the reflector's store interface. The reflector never calls it, because the agent sets no resync period.
func (s *sink) Resync() error { return nil }

// clockUntil is a real clock whose timers also fire when the context ends. The reflector ignores the context during some of its
// backoffs, which would delay the end of the process by up to a minute.
type clockUntil struct {
	clock.RealClock
	ctx context.Context
}

func (c clockUntil) After(d time.Duration) <-chan time.Time {
	done := make(chan time.Time, 1)
	fire := func() {
		select {
		case done <- time.Now():
		default: // fired before
		}
	}
	release := context.AfterFunc(c.ctx, fire)
	time.AfterFunc(d, func() {
		release()
		fire()
	})
	return done
}
