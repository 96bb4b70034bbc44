// Package watchtest provides an API server for tests. The server stores any number of objects and sends changes as fast as a
// test makes them.
//
// Only tests import it.
package watchtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Server implements the parts of an API server that a watching client uses: lists, watches, streamed lists, selectors,
// bookmarks, protobuf and failures. If Writable is set, clients can also write. The server neither validates objects nor sets
// defaults.
type Server struct {
	// Failed receives errors that must not occur: bugs of this server, or requests that it does not support.
	Failed func(error)
	// If Writable is set, the server stores all kinds of objects that clients send. Otherwise the server refuses objects such
	// as Events.
	Writable bool

	mu      sync.Mutex
	version int
	objects map[string]map[string]runtime.Object // by resource, then by namespace/name
	// log contains every event in order. A watch from a version before oldest receives the response Gone.
	log    []logged
	oldest int
	// news is closed and replaced on every change.
	news     chan struct{}
	requests []*http.Request
	fault    func(w http.ResponseWriter, r *http.Request) bool
	// cut ends all open watches.
	cut    context.CancelFunc
	cutCtx context.Context
	// NoStreaming makes the server reject streamed lists.
	NoStreaming bool
	cleanup     func(func())
	// TLS is the configuration for StartAt; nil means an untrusted certificate.
	TLS *tls.Config
}

type logged struct {
	version  int
	resource string
	kind     watch.EventType
	obj, old runtime.Object // old is nil if the object did not exist before
}

// New returns a server without objects. A server error fails the test.
func New(t *testing.T) *Server {
	s := NewServer()
	s.Failed = func(err error) { t.Error(err) }
	s.cleanup = t.Cleanup
	t.Cleanup(s.end)
	return s
}

// NewServer returns a server without objects that is independent of a test.
func NewServer() *Server {
	s := &Server{
		Failed: func(err error) { panic(err) }, cleanup: func(func()) {}, version: 100, oldest: 100,
		objects: map[string]map[string]runtime.Object{}, news: make(chan struct{}),
	}
	s.cutCtx, s.cut = context.WithCancel(context.Background())
	return s
}

// Start serves over TLS with HTTP/2, as API servers do, until the end of the test.
func (s *Server) Start() *httptest.Server { return s.start(httptest.NewUnstartedServer(s)) }

// StartAt is like Start, but serves on the given listener.
func (s *Server) StartAt(l net.Listener) *httptest.Server {
	return s.start(&httptest.Server{Listener: l, TLS: s.TLS, Config: &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0)}})
}

func (s *Server) start(server *httptest.Server) *httptest.Server {
	server.EnableHTTP2 = true
	server.StartTLS()
	s.cleanup(func() {
		s.end()
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

// Config returns the client configuration for a started server.
func Config(server *httptest.Server) *rest.Config {
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// Put creates objects or replaces them.
func (s *Server) Put(objs ...runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, obj := range objs {
		s.put(obj)
	}
}

// Delete deletes objects.
func (s *Server) Delete(objs ...runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, obj := range objs {
		s.delete(obj)
	}
}

func (s *Server) put(obj runtime.Object) runtime.Object {
	resource, name := resourceOf(obj), nameOf(obj)
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]runtime.Object{}
	}
	kind := watch.Added
	if s.objects[resource][name] != nil {
		kind = watch.Modified
	}
	obj = s.record(kind, obj)
	s.objects[resource][name] = obj
	return obj
}

func (s *Server) delete(obj runtime.Object) {
	s.record(watch.Deleted, obj)
	delete(s.objects[resourceOf(obj)], nameOf(obj))
}

func (s *Server) record(kind watch.EventType, obj runtime.Object) runtime.Object {
	resource := resourceOf(obj)
	old := s.objects[resource][nameOf(obj)]
	if kind == watch.Deleted && old == nil {
		old = obj // a server reports deletions even for objects that are missing from its lists
	}
	obj = obj.DeepCopyObject()
	s.version++
	m, _ := meta.Accessor(obj)
	m.SetResourceVersion(strconv.Itoa(s.version))
	s.log = append(s.log, logged{s.version, resource, kind, obj, old})
	close(s.news)
	s.news = make(chan struct{})
	return obj
}

// Compact drops the history, so a client whose watch was interrupted must list again.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.log = s.version, nil
}

// Restore simulates restoring the server from a backup: the server contains only these objects, at an older version, and no
// history. Like a real server, it sends nothing on a watch from a version that it has not reached yet.
func (s *Server) Restore(version int, objs ...runtime.Object) {
	s.mu.Lock()
	s.version = version
	clear(s.objects)
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

// end ends all watches, as well as those that begin later: Close waits for the connections of clients that connect again meanwhile.
func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut()
}

// SetFault sets a function that responds instead of the server. If the function returns false, the server responds.
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

// ServeHTTP serves a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	q := r.URL.Query()
	at, known := placeOf(r.URL.Path)
	switch {
	case !known || !s.Writable && (r.Method != http.MethodGet || !watched[at.resource]):
		Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.Method != http.MethodGet:
		s.write(w, r, at)
	case at.name != "":
		s.get(w, r, at)
	case s.tooNew(q):
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, metav1.CauseTypeResourceVersionTooLarge)
	case q.Get("watch") == "":
		s.list(w, r, at)
	case q.Get("sendInitialEvents") == "true" && s.NoStreaming:
		Refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	default:
		s.watch(w, r, at)
	}
}

var watched = map[string]bool{"services": true, "endpointslices": true, "nodes": true}

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

func (s *Server) list(w http.ResponseWriter, r *http.Request, at place) {
	selects, err := selector(r.URL.Query(), at)
	if err != nil {
		Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	objs := []runtime.Object{}
	for _, obj := range s.objects[at.resource] {
		if selects(obj) {
			objs = append(objs, obj)
		}
	}
	version := strconv.Itoa(s.version)
	s.mu.Unlock()
	list, err := scheme.Scheme.New(at.kind().GroupVersion().WithKind(at.kind().Kind + "List"))
	if err == nil {
		err = meta.SetList(list, objs)
	}
	if err != nil {
		s.Failed(err)
		return
	}
	m, _ := meta.ListAccessor(list)
	m.SetResourceVersion(version)
	s.respond(w, r, http.StatusOK, list)
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, at place) {
	s.mu.Lock()
	obj := s.objects[at.resource][at.key()]
	s.mu.Unlock()
	if obj == nil {
		Refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	s.respond(w, r, http.StatusOK, obj)
}

// The client may have disconnected.
func (s *Server) respond(w http.ResponseWriter, r *http.Request, code int, obj runtime.Object) {
	info := s.serializer(r)
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_ = encoder(info.Serializer, obj).Encode(obj.DeepCopyObject(), w)
}

func (s *Server) serializer(r *http.Request) runtime.SerializerInfo {
	mediaType, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	if strings.TrimSpace(mediaType) == "*/*" || mediaType == "" {
		mediaType = runtime.ContentTypeJSON
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), strings.TrimSpace(mediaType))
	if !ok {
		s.Failed(fmt.Errorf("client accepts %q", r.Header.Get("Accept")))
	}
	return info
}

func encoder(e runtime.Encoder, obj runtime.Object) runtime.Encoder {
	return scheme.Codecs.EncoderForVersion(e, kindOf(obj).GroupVersion())
}
