package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
)

const fieldManager = "kube-ipvs-e2e"

// together limits the concurrent requests for objects of one kind.
const together = 16

type resource struct {
	plural     string
	namespaced bool
	status     bool // the kind has a status, which Apply writes separately
}

// The keys have the form "apiVersion kind".
var resources = map[string]resource{
	"v1 Namespace":                      {plural: "namespaces"},
	"v1 Node":                           {plural: "nodes", status: true},
	"v1 Service":                        {plural: "services", namespaced: true, status: true},
	"v1 Pod":                            {plural: "pods", namespaced: true, status: true},
	"v1 ConfigMap":                      {plural: "configmaps", namespaced: true},
	"v1 Secret":                         {plural: "secrets", namespaced: true},
	"v1 ServiceAccount":                 {plural: "serviceaccounts", namespaced: true},
	"discovery.k8s.io/v1 EndpointSlice": {plural: "endpointslices", namespaced: true},
	"networking.k8s.io/v1 ServiceCIDR":  {plural: "servicecidrs"},
	"apps/v1 DaemonSet":                 {plural: "daemonsets", namespaced: true, status: true},
	"rbac.authorization.k8s.io/v1 Role": {plural: "roles", namespaced: true},
	"rbac.authorization.k8s.io/v1 RoleBinding":                         {plural: "rolebindings", namespaced: true},
	"rbac.authorization.k8s.io/v1 ClusterRole":                         {plural: "clusterroles"},
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding":                  {plural: "clusterrolebindings"},
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":        {plural: "validatingadmissionpolicies"},
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": {plural: "validatingadmissionpolicybindings"},
}

// Apply creates or updates the objects in a YAML text with server-side apply. It also writes their status.
// Documents are sent in order, but adjacent documents of the same kind are sent concurrently.
func (cp *ControlPlane) Apply(ctx context.Context, documents string) error {
	if err := cp.each(ctx, documents, false, applyObject); err != nil || cp.small == nil {
		return err
	}
	return remember(documents)
}

// Delete removes the objects in a YAML text in reverse order. A Namespace must be empty, because no controller
// empties it.
func (cp *ControlPlane) Delete(ctx context.Context, documents string) error {
	return cp.each(ctx, documents, true, deleteObject)
}

// each handles adjacent documents of one kind concurrently.
func (cp *ControlPlane) each(ctx context.Context, documents string, backwards bool, do func(context.Context, *rest.RESTClient, object) error) error {
	objects, err := parse(documents)
	if err != nil {
		return err
	}
	if backwards {
		slices.Reverse(objects)
	}
	client, err := restClient(cp.admin)
	if err != nil {
		return err
	}
	for run := range runs(objects) {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(together)
		for _, o := range run {
			group.Go(func() error { return do(ctx, client, o) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	return nil
}

type object struct {
	*unstructured.Unstructured
	resource
}

// parse rejects kinds that Apply does not support.
func parse(documents string) ([]object, error) {
	var objects []object
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(documents), 4096)
	for n := 1; ; n++ {
		content := map[string]any{}
		if err := decoder.Decode(&content); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("read document %d: %w", n, err)
		}
		if len(content) == 0 { // only comments
			continue
		}
		u := &unstructured.Unstructured{Object: content}
		kind := u.GetAPIVersion() + " " + u.GetKind()
		r, known := resources[kind]
		if !known {
			return nil, fmt.Errorf("read document %d: no resource is known for %q: add it to the table in e2e/testbed/controlplane/objects.go", n, kind)
		}
		if u.GetName() == "" {
			return nil, fmt.Errorf("read document %d: the %s has no metadata.name", n, u.GetKind())
		}
		if r.namespaced && u.GetNamespace() == "" {
			u.SetNamespace(metav1.NamespaceDefault)
		}
		objects = append(objects, object{u, r})
	}
}

// runs splits objects where the kind changes.
func runs(objects []object) func(yield func([]object) bool) {
	return func(yield func([]object) bool) {
		for len(objects) > 0 {
			end := slices.IndexFunc(objects, func(o object) bool { return o.resource != objects[0].resource })
			if end < 0 {
				end = len(objects)
			}
			if !yield(objects[:end]) {
				return
			}
			objects = objects[end:]
		}
	}
}

func (o object) path(subresource ...string) string {
	root := "/apis"
	if !strings.Contains(o.GetAPIVersion(), "/") {
		root = "/api"
	}
	elements := []string{root, o.GetAPIVersion()}
	if o.namespaced {
		elements = append(elements, "namespaces", o.GetNamespace())
	}
	elements = append(elements, o.plural, o.GetName())
	return path.Join(append(elements, subresource...)...)
}

// String returns the object's name for error messages.
func (o object) String() string {
	return strings.TrimLeft(o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName(), "/")
}

func applyObject(ctx context.Context, client *rest.RESTClient, o object) error {
	if err := patch(ctx, client, o.path(), o.Unstructured); err != nil {
		return fmt.Errorf("apply %s: %w", o, err)
	}
	return applyStatus(ctx, client, o)
}

func applyStatus(ctx context.Context, client *rest.RESTClient, o object) error {
	status, present := o.Object["status"]
	if !o.status || !present {
		return nil
	}
	// Labels in a patch of the status would change their ownership, so send only the object's identity.
	only := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	only.SetAPIVersion(o.GetAPIVersion())
	only.SetKind(o.GetKind())
	only.SetName(o.GetName())
	only.SetNamespace(o.GetNamespace())
	if err := patch(ctx, client, o.path("status"), only); err != nil {
		return fmt.Errorf("apply the status of %s: %w", o, err)
	}
	return nil
}

// patch takes over fields that other managers own.
func patch(ctx context.Context, client *rest.RESTClient, path string, u *unstructured.Unstructured) error {
	body, err := u.MarshalJSON()
	if err != nil {
		return err
	}
	return client.Patch(types.ApplyYAMLPatchType).AbsPath(path).
		Param("fieldManager", fieldManager).Param("force", "true").Param("fieldValidation", "Strict").
		Body(body).Do(ctx).Error()
}

func deleteObject(ctx context.Context, client *rest.RESTClient, o object) error {
	err := client.Delete().AbsPath(o.path()).Param("gracePeriodSeconds", "0").Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil && o.plural == "namespaces" {
		err = finalize(ctx, client, o)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", o, err)
	}
	return nil
}

// finalize acts as the namespace controller. Otherwise, a deleted Namespace would exist forever.
func finalize(ctx context.Context, client *rest.RESTClient, o object) error {
	var namespace corev1.Namespace
	if err := client.Get().AbsPath(o.path()).Do(ctx).Into(&namespace); err != nil {
		return err
	}
	namespace.Spec.Finalizers = nil
	return client.Put().AbsPath(o.path("finalize")).Body(&namespace).Do(ctx).Error()
}
