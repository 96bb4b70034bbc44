package watchtest

import (
	"io"
	"maps"
	"net/http"
	"path"
	"sort"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// stream writes the events of one watch.
type stream struct {
	*Server
	info  runtime.SerializerInfo
	out   io.Writer
	flush func()
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	resource, q := path.Base(r.URL.Path), r.URL.Query()
	info := s.serializer(r)
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	streaming := q.Get("sendInitialEvents") == "true"
	s.mu.Lock()
	gone, cut, version := !streaming && from < s.oldest, s.cutCtx, s.version
	initial := maps.Clone(s.objects[resource])
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
		for _, obj := range initial {
			to.send(watch.Added, obj)
		}
		to.bookmark(resource, version, true)
		from = version
	}
	bookmarks := time.NewTicker(time.Minute)
	defer bookmarks.Stop()
	for {
		s.mu.Lock()
		news, events := s.news, s.log[sort.Search(len(s.log), func(i int) bool { return s.log[i].version > from }):]
		s.mu.Unlock()
		for _, e := range events {
			if e.resource == resource {
				to.send(e.kind, e.obj)
			}
			from = e.version
		}
		select {
		case <-news:
		case <-bookmarks.C:
			if version := s.Version(); version >= from {
				to.bookmark(resource, version, false)
			}
		case <-r.Context().Done():
			return
		case <-cut.Done():
			return
		}
	}
}

func (w *stream) bookmark(resource string, version int, initialEventsEnd bool) {
	obj := map[string]runtime.Object{"services": &v1.Service{}, "endpointslices": &discoveryv1.EndpointSlice{}, "nodes": &v1.Node{}}[resource]
	m, _ := meta.Accessor(obj)
	m.SetResourceVersion(strconv.Itoa(version))
	if initialEventsEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	w.send(watch.Bookmark, obj)
}

func (w *stream) send(kind watch.EventType, obj runtime.Object) {
	obj = obj.DeepCopyObject() // encoding sets its kind, and other streams and lists read it
	raw, err := runtime.Encode(w.encoder(w.info.StreamSerializer.Serializer, obj), obj)
	if err == nil && w.info.MediaType == runtime.ContentTypeProtobuf {
		raw, err = runtime.Encode(w.encoder(w.info.Serializer, obj), obj)
	}
	if err != nil {
		w.t.Error(err)
	}
	event := &metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
	encoder := w.codecs.EncoderForVersion(w.info.StreamSerializer.Serializer, schema.GroupVersion{Version: "v1"})
	if err := encoder.Encode(event, w.out); err != nil {
		return // the client has disconnected, as the request's context shows
	}
	w.flush()
}
