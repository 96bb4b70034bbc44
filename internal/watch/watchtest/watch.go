package watchtest

import (
	"io"
	"maps"
	"net/http"
	"sort"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

type stream struct {
	*Server
	info  runtime.SerializerInfo
	out   io.Writer
	flush func()
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, at place) {
	q := r.URL.Query()
	selects, err := selector(q, at)
	if err != nil {
		Refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	info := s.serializer(r)
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	streaming := q.Get("sendInitialEvents") == "true"
	s.mu.Lock()
	gone, cut, version := !streaming && from < s.oldest, s.cutCtx, s.version
	initial := maps.Clone(s.objects[at.resource])
	s.mu.Unlock()
	if gone {
		Refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	w.WriteHeader(http.StatusOK)
	to := &stream{s, info, info.StreamSerializer.Framer.NewFrameWriter(w), w.(http.Flusher).Flush}
	to.flush()
	if streaming {
		to.begin(at, initial, selects, version)
		from = version
	}
	bookmarks := time.NewTicker(time.Minute)
	defer bookmarks.Stop()
	for {
		s.mu.Lock()
		news, events := s.news, s.log[sort.Search(len(s.log), func(i int) bool { return s.log[i].version > from }):]
		s.mu.Unlock()
		for _, e := range events {
			if kind, ok := e.seenBy(selects); ok && e.resource == at.resource {
				to.send(kind, e.obj)
			}
			from = e.version
		}
		select {
		case <-news:
		case <-bookmarks.C:
			if version := s.Version(); version >= from {
				to.bookmark(at, version, false)
			}
		case <-r.Context().Done():
			return
		case <-cut.Done():
			return
		}
	}
}

// begin sends a complete list, followed by a bookmark that marks its end.
func (w *stream) begin(at place, objs map[string]runtime.Object, selects func(runtime.Object) bool, version int) {
	for _, obj := range objs {
		if selects(obj) {
			w.send(watch.Added, obj)
		}
	}
	w.bookmark(at, version, true)
}

// For a client that selects only some objects, an update may look like an addition or a deletion.
func (e logged) seenBy(selects func(runtime.Object) bool) (kind watch.EventType, ok bool) {
	before := e.old != nil && selects(e.old)
	after := e.kind != watch.Deleted && selects(e.obj)
	switch {
	case before && after:
		return watch.Modified, true
	case after:
		return watch.Added, true
	case before:
		return watch.Deleted, true
	}
	return "", false
}

func (w *stream) bookmark(at place, version int, initialEventsEnd bool) {
	obj, err := scheme.Scheme.New(at.kind())
	if err != nil {
		w.Failed(err)
		return
	}
	m, _ := meta.Accessor(obj)
	m.SetResourceVersion(strconv.Itoa(version))
	if initialEventsEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	w.send(watch.Bookmark, obj)
}

func (w *stream) send(kind watch.EventType, obj runtime.Object) {
	obj = obj.DeepCopyObject() // encoding sets the object's kind, and other streams and lists read the object
	raw, err := runtime.Encode(encoder(w.info.StreamSerializer.Serializer, obj), obj)
	if err == nil && w.info.MediaType == runtime.ContentTypeProtobuf {
		raw, err = runtime.Encode(encoder(w.info.Serializer, obj), obj)
	}
	if err != nil {
		w.Failed(err)
	}
	event := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	encoder := scheme.Codecs.EncoderForVersion(w.info.StreamSerializer.Serializer, schema.GroupVersion{Version: "v1"})
	if err := encoder.Encode(event, w.out); err != nil {
		return // the client has disconnected, so the request's context ends
	}
	w.flush()
}
