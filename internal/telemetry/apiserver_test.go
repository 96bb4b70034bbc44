package telemetry

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// apiServer implements the part of the API that Events need.
type apiServer struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	services map[model.ServiceID]types.UID
	names    map[string]bool
	// refusals is the number of posts to refuse with the HTTP status refuse.
	refuse, refusals int
	posted           chan *eventsv1.Event
	posts            int
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{
		t: t, services: map[model.ServiceID]types.UID{web: "uid-web", dns: "uid-dns"}, names: map[string]bool{},
		posted: make(chan *eventsv1.Event, 100),
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.Method == http.MethodGet && len(path) == 5 && slices.Equal(path[:3], []string{"api", "v1", "namespaces"}) && path[4] == "services":
		list := v1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}}
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		if uid, ok := s.services[model.ServiceID{Namespace: path[3], Name: name}]; ok {
			list.Items = []v1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: path[3], Name: name, UID: uid, ResourceVersion: "7"}}}
		}
		s.reply(w, http.StatusOK, list)
	case r.Method == http.MethodPost && len(path) == 6 && slices.Equal(path[:3], []string{"apis", "events.k8s.io", "v1"}) && path[5] == "events":
		s.create(w, r, path[4])
	default:
		s.t.Errorf("unexpected %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *apiServer) create(w http.ResponseWriter, r *http.Request, namespace string) {
	s.posts++
	event := &eventsv1.Event{}
	if err := json.NewDecoder(r.Body).Decode(event); err != nil || event.Namespace != namespace {
		s.t.Errorf("invalid post to namespace %s: error %v, Event %+v", namespace, err, event)
	}
	switch {
	case s.refusals > 0:
		s.refusals--
		s.status(w, s.refuse, metav1.StatusReasonForbidden)
	case s.names[event.Name]:
		s.status(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
	default:
		s.names[event.Name] = true
		s.posted <- event
		s.reply(w, http.StatusCreated, event)
	}
}

func (s *apiServer) status(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	if code >= 500 {
		reason = metav1.StatusReasonInternalError
	}
	s.reply(w, code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code), Message: "refused by the test",
	})
}

func (s *apiServer) reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		s.t.Log(err) // the client may have disconnected
	}
}

func (s *apiServer) refuseNext(n, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse, s.refusals = code, n
}

func (s *apiServer) countPosts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posts
}

func (s *apiServer) next() *eventsv1.Event {
	s.t.Helper()
	select {
	case e := <-s.posted:
		return e
	case <-time.After(20 * time.Second):
		s.t.Fatal("no Event arrived")
		return nil
	}
}
