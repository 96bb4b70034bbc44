package watch_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/manifests"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// Objects read from a real API server produce the same model as the manifest that created them.
func TestBothSourcesAgree(t *testing.T) {
	server := controlplane.Start(t, controlplane.Config{})
	if err := server.Apply(t.Context(), watch.EveryType); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(watch.EveryType), 0o644); err != nil {
		t.Fatal(err)
	}
	changes, err := manifests.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	fromFile := watchtest.NewView()
	fromFile.Take(changes)
	if len(fromFile.Services) != 4 || len(fromFile.Nodes) != 2 || len(fromFile.Problems) > 0 {
		t.Fatalf("from manifests:\n%s", fromFile)
	}

	api := watch.StartAPI(t, server.Client())
	v := watchtest.NewView()
	v.Await(t, api, "the same, want\n"+fromFile.String(), func() bool {
		// The manifest does not contain the API server's own Service and slice.
		delete(v.Services, model.ServiceID{Namespace: "default", Name: "kubernetes"})
		return v.String() == fromFile.String()
	})
	for id, want := range fromFile.Services {
		got := *v.Services[id]
		if got.UID == "" || got.Created.IsZero() {
			t.Errorf("%v: got UID %q, created %v; want the values from the API server", id, got.UID, got.Created)
		}
		got.UID, got.Created = "", time.Time{}.UTC()
		expected := *want
		expected.Created = got.Created
		sameSlices := slices.EqualFunc(got.Slices, want.Slices, watch.EqualSlice)
		got.Slices, expected.Slices = nil, nil
		if !sameSlices || !watch.EqualService(&got, &expected) {
			t.Errorf("%v: got %+v, want %+v", id, got, expected)
		}
	}
	if !maps.EqualFunc(v.Nodes, fromFile.Nodes, watch.EqualNode) {
		t.Errorf("Nodes %v, want %v", v.Nodes, fromFile.Nodes)
	}
}
