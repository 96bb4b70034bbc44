package pods

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

// podServer is an API server with pods that have been left, and with temporary pods that end after some failed reads.
type podServer struct {
	left  []corev1.Pod
	fails []*apierrors.StatusError

	mu     sync.Mutex
	events []string
}

func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := path.Base(r.URL.Path)
	pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "once", Namespace: "kube-system"}}
	var answer any = &pod
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodDelete:
		s.events = append(s.events, "delete "+name)
	case name == "log":
		s.events = append(s.events, "log")
		answer = json.RawMessage(`{"kind": "Cleanup"}`)
	case name == "pods" && r.Method == http.MethodGet:
		answer = corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: s.left}
	case r.Method == http.MethodGet && len(s.fails) > 0:
		status := s.fails[0].Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer, s.fails = status, s.fails[1:]
		w.WriteHeader(int(status.Code))
	case r.Method == http.MethodGet:
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// run runs cleanup on one node.
func (s *podServer) run(t *testing.T) fleet.Answer {
	t.Helper()
	api := httptest.NewServer(s)
	defer api.Close()
	cfg := Config{Client: rest.Config{Host: api.URL}, Namespace: "kube-system", Nodes: []string{"node-1"}, Timeout: time.Minute, Image: "x"}
	answers, _, err := ask(t, cfg, fleet.Question{Command: "cleanup"})
	if err != nil || len(answers) != 1 {
		t.Fatal(answers, err)
	}
	return answers[0]
}

// TestPodsOfOtherCommands: a command deletes only pods that no other command can be waiting for.
func TestPodsOfOtherCommands(t *testing.T) {
	left := func(name string, age time.Duration, phase corev1.PodPhase, deadline *int64) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
			Spec:       corev1.PodSpec{ActiveDeadlineSeconds: deadline}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	minutes := new(int64(180))
	s := &podServer{left: []corev1.Pod{
		left("unread", 2*time.Minute, corev1.PodSucceeded, minutes), left("unread-failure", 2*time.Minute, corev1.PodFailed, minutes),
		left("old", 4*time.Minute, corev1.PodSucceeded, minutes), left("old-failure", 4*time.Minute, corev1.PodFailed, minutes),
		left("running", 4*time.Minute, corev1.PodRunning, minutes), left("anothers", time.Hour, corev1.PodSucceeded, nil),
	}}
	s.run(t)
	if want := []string{"delete old", "delete old-failure", "log", "delete once"}; !slices.Equal(s.events, want) {
		t.Errorf("%q, want %q", s.events, want)
	}
}

// TestUnreadableForAMoment: a cleanup continues if its pod cannot be read for a moment.
func TestUnreadableForAMoment(t *testing.T) {
	s := &podServer{fails: []*apierrors.StatusError{apierrors.NewInternalError(http.ErrHandlerTimeout), apierrors.NewUnauthorized("the token is being renewed")}}
	if answer, want := s.run(t), []string{"log", "delete once"}; answer.Error != "" || answer.ExitStatus == nil || !slices.Equal(s.events, want) {
		t.Errorf("%+v, %q", answer, s.events)
	}
	pods := corev1.Resource("pods")
	for why, err := range map[string]*apierrors.StatusError{"not found": apierrors.NewNotFound(pods, "once"), "forbidden": apierrors.NewForbidden(pods, "once", nil)} {
		s := &podServer{fails: []*apierrors.StatusError{err}}
		if answer, want := s.run(t), []string{"delete once"}; !strings.Contains(answer.Error, why) || !slices.Equal(s.events, want) {
			t.Errorf("%s: %+v, %q", why, answer, s.events)
		}
	}
}
