package watch

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// listedKinds are the kinds that must have been listed before the model is complete.
var listedKinds = [...]model.Kind{model.KindService, model.KindEndpointSlice, model.KindNode}

// Record is one parsed object. The Kubernetes object is dropped after parsing: in a large cluster, most of its bytes are
// managedFields, labels and annotations that the agent never reads.
//
// A Record without a Service, Slice or Node adds nothing to the model. It also represents a deleted object.
type Record struct {
	// ObjectMeta has only the namespace and the name. It allows the reflector's temporary store to keep records, so that a
	// whole list is never in memory as Kubernetes objects.
	metav1.ObjectMeta
	kind model.Kind

	Service *model.Service

	owner model.ServiceID // of Slice
	Slice *model.EndpointSlice
	// trigger is the time of the change that produced this slice; zero if the slice has none.
	trigger time.Time

	Node *model.Node

	Problems []model.Problem
}

// FileRecord returns a record with the Problems of a file or directory.
func FileRecord(path string, problems []model.Problem) *Record {
	r := newRecord(model.KindFile, "", path)
	r.Problems = problems
	return r
}

func newRecord(kind model.Kind, namespace, name string) *Record {
	return &Record{kind: kind, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// Key names the object.
func (r *Record) Key() model.ObjectRef {
	return model.ObjectRef{Kind: r.kind, Namespace: r.Namespace, Name: r.Name}
}

// Usable reports whether the record adds anything to the model.
func (r *Record) Usable() bool { return r.Service != nil || r.Slice != nil || r.Node != nil }

type converter struct {
	names *interner
	proxy Proxy
}

func newConverter(proxy Proxy) converter { return converter{names: newInterner(), proxy: proxy} }

// Convert parses one object. origin is the position of the object in a manifest; it is empty for objects from the API server.
func (c converter) Convert(obj any, origin string) (*Record, error) {
	switch obj := obj.(type) {
	case *Record:
		return obj, nil
	case *v1.Service:
		return c.service(obj, origin), nil
	case *discoveryv1.EndpointSlice:
		return c.endpointSlice(obj, origin), nil
	case *v1.Node:
		return c.node(obj, origin), nil
	}
	return nil, fmt.Errorf("convert %T: not a Service, EndpointSlice or Node", obj)
}
