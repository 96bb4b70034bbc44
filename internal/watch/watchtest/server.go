// Package watchtest has an API server for tests. It holds any number of objects and sends changes as fast as a test makes them.
//
// Only tests import it.
package watchtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Server implements the parts of an API server that a watching client uses: lists, watches, streamed lists, bookmarks, protobuf
// and failures. It ignores selectors.
type Server struct {
	t      *testing.T
	codecs serializer.CodecFactory

	mu      sync.Mutex
	version int
	objects map[string]map[string]runtime.Object // by resource, then by namespace/name
	// log holds every event in order. A watch from a version before oldest gets the response Gone.
	log    []logged
	oldest int
	// news is closed and replaced at every change.
	news     chan struct{}
	requests []*http.Request
	fault    func(w http.ResponseWriter, r *http.Request) bool
	// cut ends all open watches.
	cut    context.CancelFunc
	cutCtx context.Context
	// NoStreaming makes the server reject streamed lists.
	NoStreaming bool
	// TLS is the configuration for StartAt; nil for an untrusted certificate.
	TLS *tls.Config
}

type logged struct {
	version  int
	resource string
	kind     watch.EventType
	obj      runtime.Object
}

// New returns a server without objects.
func New(t *testing.T) *Server {
	s := &Server{
		t: t, codecs: serializer.NewCodecFactory(newScheme(t)), version: 100, oldest: 100,
		objects: map[string]map[string]runtime.Object{"services": {}, "endpointslices": {}, "nodes": {}},
		news:    make(chan struct{}),
	}
	s.cutCtx, s.cut = context.WithCancel(context.Background())
	t.Cleanup(func() { s.cut() })
	return s
}

func newScheme(t *testing.T) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// Start serves over TLS with HTTP/2, as API servers do, until the end of the test.
func (s *Server) Start() *httptest.Server { return s.start(httptest.NewUnstartedServer(s)) }

// StartAt is Start on the test's own listener.
func (s *Server) StartAt(l net.Listener) *httptest.Server {
	return s.start(&httptest.Server{Listener: l, TLS: s.TLS, Config: &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0)}})
}

func (s *Server) start(server *httptest.Server) *httptest.Server {
	server.EnableHTTP2 = true
	server.StartTLS()
	s.t.Cleanup(func() {
		s.CutWatches()
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

// Config returns the client configuration for a started server.
func Config(server *httptest.Server) *rest.Config {
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func resourceOf(obj runtime.Object) string {
	switch obj.(type) {
	case *v1.Service:
		return "services"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	case *v1.Node:
		return "nodes"
	}
	panic(fmt.Sprintf("%T", obj))
}

func nameOf(obj runtime.Object) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	return m.GetNamespace() + "/" + m.GetName()
}

// Put creates objects or replaces them.
func (s *Server) Put(objs ...runtime.Object) {
	s.change(func(obj runtime.Object) watch.EventType {
		kind := watch.Added
		if s.objects[resourceOf(obj)][nameOf(obj)] != nil {
			kind = watch.Modified
		}
		s.objects[resourceOf(obj)][nameOf(obj)] = obj
		return kind
	}, objs)
}

// Delete deletes objects.
func (s *Server) Delete(objs ...runtime.Object) {
	s.change(func(obj runtime.Object) watch.EventType {
		delete(s.objects[resourceOf(obj)], nameOf(obj))
		return watch.Deleted
	}, objs)
}

func (s *Server) change(do func(runtime.Object) watch.EventType, objs []runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, obj := range objs {
		obj = obj.DeepCopyObject()
		s.version++
		m, _ := meta.Accessor(obj)
		m.SetResourceVersion(strconv.Itoa(s.version))
		s.log = append(s.log, logged{s.version, resourceOf(obj), do(obj), obj})
	}
	close(s.news)
	s.news = make(chan struct{})
}

// Compact drops the history: a client whose watch was interrupted must list again.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.log = s.version, nil
}

// Restore simulates a server that was restored from a backup: it has only these objects, in an older version, and no history.
// Like a real server, it sends nothing on a watch from a version that it has not reached yet.
func (s *Server) Restore(version int, objs ...runtime.Object) {
	s.mu.Lock()
	s.version = version
	for resource := range s.objects {
		s.objects[resource] = map[string]runtime.Object{}
	}
	s.mu.Unlock()
	s.Put(objs...)
	s.mu.Lock()
	s.oldest, s.log = s.version, nil
	s.mu.Unlock()
	s.CutWatches()
}

// Version returns the newest version of any object.
func (s *Server) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// CutWatches ends all open watches.
func (s *Server) CutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut()
	s.cutCtx, s.cut = context.WithCancel(context.Background())
}

// SetFault sets a function that responds instead of the server. If it returns false, the server responds.
func (s *Server) SetFault(fault func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// Requests returns the received requests.
func (s *Server) Requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP serves lists and watches.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	q := r.URL.Query()
	switch {
	case r.Method != http.MethodGet || !s.holds(path.Base(r.URL.Path)):
		Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case s.tooNew(q):
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, metav1.CauseTypeResourceVersionTooLarge)
	case q.Get("watch") == "":
		s.list(w, r)
	case q.Get("sendInitialEvents") == "true" && s.NoStreaming:
		Refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	default:
		s.watch(w, r)
	}
}

// holds reports whether the server stores objects of a resource. It does not store objects that agents write, such as Events.
func (s *Server) holds(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[resource] != nil
}

// tooNew reports whether a request requires a version that the server has not reached yet.
func (s *Server) tooNew(q url.Values) bool {
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	return (q.Get("watch") == "" || q.Get("sendInitialEvents") == "true") && from > s.Version()
}

// Refuse responds with a Status, as an API server does.
func Refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) { refuse(w, code, reason, "") }

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, cause metav1.CauseType) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"refused by the test",`+
		`"details":{"causes":[{"reason":%q}]}}`, reason, code, cause)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	s.mu.Lock()
	objs := slices.Collect(maps.Values(s.objects[resource]))
	version := strconv.Itoa(s.version)
	s.mu.Unlock()
	list := map[string]runtime.Object{
		"services": &v1.ServiceList{}, "endpointslices": &discoveryv1.EndpointSliceList{}, "nodes": &v1.NodeList{},
	}[resource]
	if err := meta.SetList(list, objs); err != nil {
		s.t.Error(err)
	}
	m, _ := meta.ListAccessor(list)
	m.SetResourceVersion(version)
	info := s.serializer(r)
	w.Header().Set("Content-Type", info.MediaType)
	if err := s.encoder(info.Serializer, list).Encode(list, w); err != nil {
		s.t.Log(err) // the client may have disconnected
	}
}

func (s *Server) serializer(r *http.Request) runtime.SerializerInfo {
	mediaType, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	info, ok := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), strings.TrimSpace(mediaType))
	if !ok {
		s.t.Errorf("client accepts %q", r.Header.Get("Accept"))
	}
	return info
}

func (s *Server) encoder(e runtime.Encoder, obj runtime.Object) runtime.Encoder {
	version := v1.SchemeGroupVersion
	switch obj.(type) {
	case *discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList:
		version = discoveryv1.SchemeGroupVersion
	}
	return s.codecs.EncoderForVersion(e, version)
}
