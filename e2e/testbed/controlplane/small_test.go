package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
)

// appliedVariable lists directories with objects that stories sent to small API servers.
const appliedVariable = "KUBE_IPVS_APPLIED"

// TestRealServerAccepts sends a real API server every object that the stories sent to a small one.
func TestRealServerAccepts(t *testing.T) {
	dirs := filepath.SplitList(os.Getenv(appliedVariable))
	if len(dirs) == 0 {
		t.Skip("make test runs this test after the stories")
	}
	cp := Start(t, Config{})
	client, err := restClient(cp.admin)
	if err != nil {
		t.Fatal(err)
	}
	all := remembered(t, dirs)
	for i, o := range all {
		renumber(t, o, i)
		if err := create(t.Context(), client, o); err != nil {
			t.Errorf("%v\n%v", err, o.Object)
		}
		if o.plural == "namespaces" {
			continue // other objects need this namespace
		}
		if err := deleteObject(t.Context(), client, o); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d objects", len(all))
}

// create does not use applyObject, which could find a just-deleted object of the same name in the API server's
// cache. The API server would then allocate a Service's addresses twice, and the second allocation would fail.
func create(ctx context.Context, client *rest.RESTClient, o object) error {
	body, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	err = client.Post().AbsPath(path.Dir(o.path())).SetHeader("Content-Type", "application/json").Param("fieldValidation", "Strict").
		Body(body).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) { // for example, the namespace default
		return applyObject(ctx, client, o)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", o, err)
	}
	return applyStatus(ctx, client, o)
}

// renumber gives a Service unique ClusterIPs. The API server repairs allocations concurrently. If it finds a
// Service that is being deleted, it may allocate the addresses again and free them only a minute later.
func renumber(t *testing.T, o object, i int) {
	t.Helper()
	ips, _, err := unstructured.NestedStringSlice(o.Object, "spec", "clusterIPs")
	if err != nil {
		t.Fatal(err)
	}
	if len(ips) == 0 || ips[0] == "None" {
		return
	}
	for n, ip := range ips {
		ips[n] = fmt.Sprintf("10.96.%d.%d", 8+i>>8, i&255)
		if strings.Contains(ip, ":") {
			ips[n] = fmt.Sprintf("fd00:10:96::%x", 0x800+i)
		}
	}
	if err := errors.Join(unstructured.SetNestedStringSlice(o.Object, ips, "spec", "clusterIPs"), unstructured.SetNestedField(o.Object, ips[0], "spec", "clusterIP")); err != nil {
		t.Fatal(err)
	}
}

// remembered returns the objects in order and without duplicates.
func remembered(t *testing.T, dirs []string) (all []object) {
	t.Helper()
	seen := map[string]bool{}
	read := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != rememberedFile {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		objects, err := parse(string(text))
		for _, o := range objects {
			content, _ := o.MarshalJSON() // never fails, because the object came from JSON
			if !seen[string(content)] {
				seen[string(content)], all = true, append(all, o)
			}
		}
		return err
	}
	for _, dir := range dirs {
		before := len(all)
		if err := filepath.WalkDir(dir, read); err != nil {
			t.Fatal(err)
		}
		if len(all) == before {
			t.Fatalf("no story left any object in %s", dir)
		}
	}
	return all
}
