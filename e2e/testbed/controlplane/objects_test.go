package controlplane

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePlacesObjectsInAPI(t *testing.T) {
	objects, err := parse(shop + `
---
# nothing here
---
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, o.path())
	}
	want := []string{
		"/api/v1/namespaces/shop",
		"/api/v1/nodes/node-1",
		"/api/v1/namespaces/shop/services/web",
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1",
		"/api/v1/namespaces/default/configmaps/settings",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

func TestParseRejects(t *testing.T) {
	tests := []struct{ name, documents, want string }{
		{"not YAML", "a: [", "read document 1"},
		{"unknown kind", "apiVersion: v1\nkind: Servise\nmetadata: {name: a}", `no resource is known for "v1 Servise"`},
		{"no name", "apiVersion: v1\nkind: Service", "the Service has no metadata.name"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := parse(tc.documents); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestRunsSplitWhereTheKindChanges(t *testing.T) {
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\n"
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\n"
	objects, err := parse(service + service + node + service)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for run := range runs(objects) {
		got = append(got, len(run))
	}
	if diff := cmp.Diff([]int{2, 1, 1}, got); diff != "" {
		t.Errorf("lengths of runs (-want +got):\n%s", diff)
	}
}
