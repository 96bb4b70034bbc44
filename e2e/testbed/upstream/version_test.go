package upstream

import "testing"

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
