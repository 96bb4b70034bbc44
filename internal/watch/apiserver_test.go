package watch

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// apiServer implements what a watching client sees of an API server: lists, watches, streamed lists, bookmarks, protobuf and
// failures. It ignores selectors.
type apiServer struct {
	t      *testing.T
	codecs serializer.CodecFactory

	mu      sync.Mutex
	version int
	objects map[string]map[string]runtime.Object // by resource, then by namespace/name
	// log holds every event in order. A watch from a version before oldest is answered with Gone.
	log    []logged
	oldest int
	// news is closed and replaced at every change.
	news     chan struct{}
	requests []*http.Request
	// fault, if set, answers instead of the server. It returns false to let the server answer.
	fault func(w http.ResponseWriter, r *http.Request) bool
	// cut ends all open watches.
	cut    context.CancelFunc
	cutCtx context.Context
	// noStreaming makes the server reject streamed lists.
	noStreaming bool
}

type logged struct {
	version  int
	resource string
	kind     watch.EventType
	obj      runtime.Object
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		t: t, codecs: serializer.NewCodecFactory(newScheme()), version: 100, oldest: 100,
		objects: map[string]map[string]runtime.Object{"services": {}, "endpointslices": {}, "nodes": {}},
		news:    make(chan struct{}),
	}
	s.cutCtx, s.cut = context.WithCancel(context.Background())
	t.Cleanup(func() { s.cut() })
	return s
}

// start serves over TLS with HTTP/2, as API servers do.
func (s *apiServer) start() *httptest.Server {
	server := httptest.NewUnstartedServer(s)
	server.EnableHTTP2 = true
	server.StartTLS()
	s.t.Cleanup(func() {
		s.cutWatches()
		server.CloseClientConnections()
		server.Close()
	})
	return server
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

func (s *apiServer) put(objs ...runtime.Object) {
	s.change(func(obj runtime.Object) watch.EventType {
		kind := watch.Added
		if s.objects[resourceOf(obj)][nameOf(obj)] != nil {
			kind = watch.Modified
		}
		s.objects[resourceOf(obj)][nameOf(obj)] = obj
		return kind
	}, objs)
}

func (s *apiServer) delete(objs ...runtime.Object) {
	s.change(func(obj runtime.Object) watch.EventType {
		delete(s.objects[resourceOf(obj)], nameOf(obj))
		return watch.Deleted
	}, objs)
}

func (s *apiServer) change(do func(runtime.Object) watch.EventType, objs []runtime.Object) {
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

// compact drops the history: a client whose watch was interrupted has to list again.
func (s *apiServer) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.log = s.version, nil
}

func (s *apiServer) cutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut()
	s.cutCtx, s.cut = context.WithCancel(context.Background())
}

func (s *apiServer) setFault(fault func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	fault := s.fault
	s.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	q := r.URL.Query()
	switch {
	case q.Get("watch") == "":
		s.list(w, r)
	case q.Get("sendInitialEvents") == "true" && s.noStreaming:
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	default:
		s.watch(w, r)
	}
}

// refuse answers with a Status, as an API server does.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"refused by the test"}`, reason, code)
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request) {
	resource := lastOf(r.URL.Path)
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
		s.t.Log(err) // the client may be gone
	}
}

func lastOf(path string) string { return path[strings.LastIndex(path, "/")+1:] }

func (s *apiServer) serializer(r *http.Request) runtime.SerializerInfo {
	mediaType, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	info, ok := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), strings.TrimSpace(mediaType))
	if !ok {
		s.t.Errorf("client accepts %q", r.Header.Get("Accept"))
	}
	return info
}

func (s *apiServer) encoder(e runtime.Encoder, obj runtime.Object) runtime.Encoder {
	version := v1.SchemeGroupVersion
	switch obj.(type) {
	case *discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList:
		version = discoveryv1.SchemeGroupVersion
	}
	return s.codecs.EncoderForVersion(e, version)
}

// watchStream writes the events of one watch.
type watchStream struct {
	*apiServer
	info  runtime.SerializerInfo
	out   io.Writer
	flush func()
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	resource, q := lastOf(r.URL.Path), r.URL.Query()
	info := s.serializer(r)
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	streaming := q.Get("sendInitialEvents") == "true"
	s.mu.Lock()
	gone, cut, version := !streaming && from < s.oldest, s.cutCtx, s.version
	initial := maps.Clone(s.objects[resource])
	s.mu.Unlock()
	if gone {
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	stream := &watchStream{s, info, info.StreamSerializer.Framer.NewFrameWriter(w), w.(http.Flusher).Flush}
	stream.flush()
	if streaming {
		for _, obj := range initial {
			stream.send(watch.Added, obj)
		}
		stream.bookmark(resource, version, true)
		from = version
	}
	for {
		s.mu.Lock()
		news, events := s.news, s.log
		s.mu.Unlock()
		for _, e := range events {
			if e.version > from && e.resource == resource {
				stream.send(e.kind, e.obj)
			}
			from = max(from, e.version)
		}
		select {
		case <-news:
		case <-r.Context().Done():
			return
		case <-cut.Done():
			return
		}
	}
}

func (w *watchStream) bookmark(resource string, version int, initialEventsEnd bool) {
	obj := map[string]runtime.Object{"services": &v1.Service{}, "endpointslices": &discoveryv1.EndpointSlice{}, "nodes": &v1.Node{}}[resource]
	m, _ := meta.Accessor(obj)
	m.SetResourceVersion(strconv.Itoa(version))
	if initialEventsEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	w.send(watch.Bookmark, obj)
}

func (w *watchStream) send(kind watch.EventType, obj runtime.Object) {
	raw, err := runtime.Encode(w.encoder(w.info.StreamSerializer.Serializer, obj), obj)
	if err == nil && w.info.MediaType == contentProtobuf {
		raw, err = runtime.Encode(w.encoder(w.info.Serializer, obj), obj)
	}
	if err != nil {
		w.t.Error(err)
	}
	event := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	encoder := w.codecs.EncoderForVersion(w.info.StreamSerializer.Serializer, schema.GroupVersion{Version: "v1"})
	if err := encoder.Encode(event, w.out); err != nil {
		return // the client is gone, as the request's context shows
	}
	w.flush()
}

// quick is the timing for tests: milliseconds instead of seconds, and a limited watch rate.
func quick() timing {
	t := defaultTiming()
	t.dial, t.pingIdle, t.pingTimeout, t.silence, t.watchRate = time.Second, 200*time.Millisecond, 200*time.Millisecond, time.Minute, 100
	t.backoff = newBackoff()
	return t
}

func restConfig(server *httptest.Server) *rest.Config {
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// run starts a source and stops it at the end of the test. Every test thereby checks that the source stops.
func run(t *testing.T, source interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Error("Run goes on after its context ended")
		}
		if api, ok := source.(*API); ok {
			for _, f := range api.feeds {
				f.client.(*rest.RESTClient).Client.CloseIdleConnections()
			}
		}
	})
}

// proxy is a TCP proxy that can turn into a black hole: connections stay open but carry no data in either direction.
type proxy struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	hole     chan struct{} // closed while the proxy is a black hole
	conns    []net.Conn
	refuse   bool
}

func newProxy(t *testing.T, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, hole: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.serve(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		p.closeAll()
	})
	return p
}

func (p *proxy) url() string { return "https://" + p.listener.Addr().String() }

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, client)
	if p.refuse {
		_ = client.Close()
		return
	}
	select {
	case <-p.hole:
		return // accepted, but not forwarded
	default:
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.conns = append(p.conns, server)
	hole := p.hole
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			buffer := make([]byte, 32<<10)
			for {
				n, err := pair[0].Read(buffer)
				select {
				case <-hole:
					if err != nil {
						return
					}
					continue // dropped
				default:
				}
				if _, werr := pair[1].Write(buffer[:n]); err != nil || werr != nil {
					_ = pair[0].Close()
					_ = pair[1].Close()
					return
				}
			}
		}()
	}
}

// blackHole drops all data on existing and new connections.
func (p *proxy) blackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.hole)
}

// open forwards new connections. Existing ones stay broken.
func (p *proxy) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole, p.refuse = make(chan struct{}), false
}

// cutOff closes existing and new connections.
func (p *proxy) cutOff() {
	p.mu.Lock()
	p.refuse = true
	p.mu.Unlock()
	p.closeAll()
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}
