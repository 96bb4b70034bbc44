package watchtest

import (
	"encoding/json"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
)

func (s *Server) write(w http.ResponseWriter, r *http.Request, at place) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has disconnected
	}
	s.mu.Lock()
	code, reason, obj := s.change(r, at, body)
	s.mu.Unlock()
	if reason != "" {
		Refuse(w, code, reason)
		return
	}
	s.respond(w, r, code, obj)
}

func (s *Server) change(r *http.Request, at place, body []byte) (code int, reason metav1.StatusReason, obj runtime.Object) {
	old := s.objects[at.resource][at.key()]
	applied := r.Method == http.MethodPatch && r.Header.Get("Content-Type") == string(types.ApplyYAMLPatchType)
	switch {
	case r.Method == http.MethodPost:
		return s.create(at, body)
	case at.name == "" || old == nil && !applied:
		return http.StatusNotFound, metav1.StatusReasonNotFound, nil
	case r.Method == http.MethodDelete:
		s.delete(old)
		return http.StatusOK, "", old
	case old == nil:
		return s.create(at, body)
	}
	patch := r.Header.Get("Content-Type")
	if r.Method == http.MethodPut {
		patch = ""
	}
	obj, err := changed(old, at, body, patch)
	if err != nil {
		return http.StatusBadRequest, metav1.StatusReasonBadRequest, nil
	}
	before, _ := meta.Accessor(old)
	after, _ := meta.Accessor(obj)
	if version := after.GetResourceVersion(); version != "" && version != before.GetResourceVersion() {
		return http.StatusConflict, metav1.StatusReasonConflict, nil
	}
	after.SetUID(before.GetUID())
	after.SetCreationTimestamp(before.GetCreationTimestamp())
	return http.StatusOK, "", s.put(obj)
}

func (s *Server) create(at place, body []byte) (code int, reason metav1.StatusReason, obj runtime.Object) {
	obj, err := decode(body)
	if err != nil {
		return http.StatusBadRequest, metav1.StatusReasonBadRequest, nil
	}
	m, _ := meta.Accessor(obj)
	if m.GetName() == "" {
		m.SetName(m.GetGenerateName() + string(uuid.NewUUID()))
	}
	m.SetNamespace(at.namespace)
	m.SetUID(uuid.NewUUID())
	m.SetCreationTimestamp(metav1.NewTime(time.Now()))
	if s.objects[at.resource][nameOf(obj)] != nil {
		return http.StatusConflict, metav1.StatusReasonAlreadyExists, nil
	}
	return http.StatusCreated, "", s.put(obj)
}

func decode(body []byte) (runtime.Object, error) {
	return runtime.Decode(scheme.Codecs.UniversalDeserializer(), body)
}

// changed returns an object after an update, an apply or a patch. An update has no patch type. An update or apply replaces either
// everything except the status, or only the status.
func changed(old runtime.Object, at place, body []byte, patch string) (runtime.Object, error) {
	if patch == string(types.StrategicMergePatchType) {
		return merged(old, body)
	}
	given, err := decode(body)
	if err != nil {
		return nil, err
	}
	from, into := old, given // the given object with the status of old
	if at.subresource == "status" {
		from, into = given, old
	}
	source, err := runtime.DefaultUnstructuredConverter.ToUnstructured(from)
	if err != nil {
		return nil, err
	}
	target, err := runtime.DefaultUnstructuredConverter.ToUnstructured(into)
	if err != nil {
		return nil, err
	}
	if delete(target, "status"); source["status"] != nil {
		target["status"] = source["status"]
	}
	obj, err := scheme.Scheme.New(at.kind())
	if err != nil {
		return nil, err
	}
	return obj, runtime.DefaultUnstructuredConverter.FromUnstructured(target, obj)
}

func merged(old runtime.Object, patch []byte) (runtime.Object, error) {
	text, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	obj, err := scheme.Scheme.New(kindOf(old))
	if err != nil {
		return nil, err
	}
	if text, err = strategicpatch.StrategicMergePatch(text, patch, obj); err != nil {
		return nil, err
	}
	return obj, json.Unmarshal(text, obj)
}
