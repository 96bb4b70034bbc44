package manifests

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/kube-ipvs/kube-ipvs/internal/watch"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Parsing any file gives a valid result.
//
// The seeds are at most a hundred bytes. The fuzzer minimizes every interesting input, which takes a number of runs quadratic
// in the input's length: with the files in testdata as seeds, it tried only 19 inputs in 20 seconds.
func FuzzManifest(f *testing.F) {
	for _, seed := range []string{
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: 10.0.0.1, ports: [{port: 1}]}}",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {x: 1}}",
		"{apiVersion: v1, kind: Node, metadata: {name: a}, spec: {podCIDRs: [x]}}",
		"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, endpoints: []}",
		"{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Node}]}",
		"{apiVersion: v1, kind: Endpoints}",
		"{apiVersion: apps/v1, kind: Deployment}",
		"%YAML 1.2\n---\n# a\n---\nkind: A\nkind: B\n...\n--- c",
	} {
		f.Add([]byte(seed))
	}
	reader := newManifestReader(watch.NewStore(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := reader.read("fuzz.yaml", data)
		for _, r := range m.records {
			watchtest.Check(t, r.Service, r.Slice, r.Node, r.Problems)
		}
		for _, p := range m.problems {
			watchtest.CheckProblem(t, p)
		}
	})
}
