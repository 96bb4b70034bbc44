package watch

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Kind is a kind of object that the Store knows.
type Kind string

// The kinds. KindFile is no Kubernetes kind: problems with a manifest file belong to it.
const (
	KindService       Kind = "Service"
	KindEndpointSlice Kind = "EndpointSlice"
	KindNode          Kind = "Node"
	KindFile          Kind = "File"
)

// listedKinds are the kinds that must have been listed before the model is complete.
var listedKinds = [...]Kind{KindService, KindEndpointSlice, KindNode}

// objectKey names one object of any kind.
type objectKey struct {
	kind            Kind
	namespace, name string
}

// String is how a Problem names the object.
func (k objectKey) String() string {
	switch {
	case k.kind == KindFile:
		return k.name
	case k.namespace == "":
		return string(k.kind) + " " + k.name
	}
	return string(k.kind) + " " + k.namespace + "/" + k.name
}

// record is what one object says, parsed. The Kubernetes object itself is dropped: in a large cluster most of its bytes are
// managedFields, labels and annotations that nobody here reads.
//
// A record without service, slice and node says that the object asks for nothing; it stands for a deleted one too.
type record struct {
	// ObjectMeta holds the namespace and the name only. It makes a record something the reflector's own temporary store
	// can hold, so that the whole list is never in memory in Kubernetes' types.
	metav1.ObjectMeta
	kind Kind

	service *model.Service

	owner model.ServiceID // of slice
	slice *model.EndpointSlice
	// trigger is when the change was made that the slice now shows; zero where it does not say.
	trigger time.Time

	node *model.Node

	problems []model.Problem
}

func newRecord(kind Kind, namespace, name string) *record {
	return &record{kind: kind, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (r *record) key() objectKey { return objectKey{r.kind, r.Namespace, r.Name} }

// asks says whether the object adds anything to the model.
func (r *record) asks() bool { return r.service != nil || r.slice != nil || r.node != nil }

// converter parses Kubernetes objects into records.
type converter struct {
	names *interner
	proxy Proxy
}

// convert parses one object. origin says where a manifest's object was written, and is empty for the API server's.
func (c converter) convert(obj any, origin string) (*record, error) {
	switch obj := obj.(type) {
	case *record:
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
