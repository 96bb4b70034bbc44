package upstream

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestModFileOfAnotherVersion(t *testing.T) {
	const pinned = "module example.com/kubernetes\n\ngo 1.26.0\n\ntool (\n\tk8s.io/kubernetes/cmd/kube-proxy\n)\n\nrequire (\n\tk8s.io/kubernetes v1.36.3 // indirect\n" +
		"\tk8s.io/streaming v0.36.3 // indirect\n)\n\nreplace (\n\tk8s.io/streaming => k8s.io/streaming v0.36.3\n)\n"
	const kubernetes = "module k8s.io/kubernetes\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => ./staging/src/k8s.io/kms\n)\n"
	const want = "module example.com/kubernetes\n\ngo 1.26.0\n\ntool (\n\tk8s.io/kubernetes/cmd/kube-proxy\n)\n\n\n\nrequire k8s.io/kubernetes v1.34.4\n\n" +
		"replace (\n\tk8s.io/api => k8s.io/api v0.34.4\n\tk8s.io/kms => k8s.io/kms v0.34.4\n)\n"
	if got := modFile(pinned, kubernetes, "1.34.4"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// TestPinnedVersionIsNotAnotherVersion: selecting the pinned version must not build it again.
func TestPinnedVersionIsNotAnotherVersion(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(versionVariable, "")
	r, pinned, err := find(root, KubeAPIServer)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ selected, source string }{
		{strings.TrimPrefix(pinned.version, "v"), r.pinned(root)},
		{"1.2.3", filepath.Join(cache(root), "kubernetes-source-1.2.3")},
	} {
		t.Setenv(versionVariable, c.selected)
		if got := r.source(root); got != c.source {
			t.Errorf("%s is built in %s, want %s", c.selected, got, c.source)
		}
	}
}
