package chart

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// decode decodes a manifest into API types. Unknown fields are an error.
func decode(t *testing.T, manifest string) []runtime.Object {
	t.Helper()
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(known); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(strings.NewReader(manifest)))
	defer documents.Close()
	var objects []runtime.Object
	for {
		document := make([]byte, len(manifest)+1)
		n, err := documents.Read(document)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if document = bytes.TrimSpace(document[:n]); len(document) == 0 {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		objects = append(objects, object)
	}
}

// only returns the single object of a type.
func only[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	var found []T
	for _, o := range objects {
		if is, ok := o.(T); ok {
			found = append(found, is)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, want 1", len(found), *new(T))
	}
	return found[0]
}

func daemonSet(t *testing.T, v values) *appsv1.DaemonSet {
	t.Helper()
	return only[*appsv1.DaemonSet](t, decode(t, mustRender(t, v).Manifest))
}

func TestObjectsAreStrictlyValid(t *testing.T) {
	podMonitor := with(parse(t, everything), parse(t, "metrics: {bindAddress: 0.0.0.0, podMonitor: {enabled: true, interval: 1m30s, labels: {a: b}}}"))
	for name, c := range map[string]struct {
		values values
		want   int
	}{
		"default":     {values{}, 4},
		"kubeadm":     {presets(t, "kubeadm", "take-over"), 4},
		"everything":  {parse(t, everything), 12},
		"pod monitor": {podMonitor, 9},
		"no rights":   {parse(t, "{rbac: {create: false}, serviceAccount: {create: false, name: other}}"), 1},
		"kube-proxy":  {parse(t, "kubeProxyConfig: {mode: ipvs, clusterCIDR: 10.244.0.0/16}"), 5},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decode(t, mustRender(t, c.values).Manifest); len(got) != c.want {
				t.Errorf("%d objects, want %d", len(got), c.want)
			}
		})
	}
}

// TestPodsAreFound: the selectors of the DaemonSet, the Service and the monitors match the pods.
func TestPodsAreFound(t *testing.T) {
	objects := decode(t, mustRender(t, parse(t, everything)).Manifest)
	ds := only[*appsv1.DaemonSet](t, objects)
	monitor := only[*monitoringv1.ServiceMonitor](t, objects)
	for what, selector := range map[string]map[string]string{
		"the DaemonSet":      ds.Spec.Selector.MatchLabels,
		"the ServiceMonitor": monitor.Spec.Selector.MatchLabels,
	} {
		for k, v := range selector {
			if ds.Spec.Template.Labels[k] != v {
				t.Errorf("%s selects %s=%s, pods have %q", what, k, v, ds.Spec.Template.Labels[k])
			}
		}
	}
	if job := ds.Spec.Template.Labels[monitor.Spec.JobLabel]; job != "kube-ipvs" {
		t.Errorf("the job label of the metrics is %q, but the alerts and the dashboard query kube-ipvs", job)
	}
}
