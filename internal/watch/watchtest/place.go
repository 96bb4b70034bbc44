package watchtest

import (
	"net/url"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// place is the resource that the path of a request identifies: a list of objects, a single object if there is a name, or a
// subresource of it.
type place struct {
	version                                schema.GroupVersion
	namespace, resource, name, subresource string
}

// A path is, for example, /apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1.
func placeOf(path string) (at place, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		at.version, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		at.version, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return at, false
	}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "finalize" && parts[2] != "status" {
		at.namespace, parts = parts[1], parts[2:]
	}
	for i, to := range []*string{&at.resource, &at.name, &at.subresource} {
		if i < len(parts) {
			*to = parts[i]
		}
	}
	return at, at.kind().Kind != ""
}

func (p place) key() string { return p.namespace + "/" + p.name }

func (p place) kind() schema.GroupVersionKind { return kinds()[p.version.WithResource(p.resource)] }

var kinds = sync.OnceValue(func() map[schema.GroupVersionResource]schema.GroupVersionKind {
	all := map[schema.GroupVersionResource]schema.GroupVersionKind{}
	for kind := range scheme.Scheme.AllKnownTypes() {
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		all[resource] = kind
	}
	return all
})

func kindOf(obj runtime.Object) schema.GroupVersionKind {
	list, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		panic(err)
	}
	return list[0]
}

func resourceOf(obj runtime.Object) string {
	resource, _ := meta.UnsafeGuessKindToResource(kindOf(obj))
	return resource.Resource
}

func nameOf(obj runtime.Object) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	return m.GetNamespace() + "/" + m.GetName()
}

func selector(q url.Values, at place) (selects func(runtime.Object) bool, err error) {
	byLabel, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, err
	}
	byField, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, err
	}
	return func(obj runtime.Object) bool {
		m, _ := meta.Accessor(obj)
		return (at.namespace == "" || m.GetNamespace() == at.namespace) && byLabel.Matches(labels.Set(m.GetLabels())) && byField.Matches(fieldsOf(obj))
	}, nil
}

func fieldsOf(obj runtime.Object) fields.Set {
	m, _ := meta.Accessor(obj)
	set := fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}
	if s, ok := obj.(*v1.Service); ok {
		set["spec.clusterIP"], set["spec.type"] = s.Spec.ClusterIP, string(s.Spec.Type)
	}
	return set
}
