package startuptaint

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestRemove checks only the patch. The chart's tests send it to a real API server.
func TestRemove(t *testing.T) {
	ours, once, other := v1.Taint{Key: Key, Effect: v1.TaintEffectNoSchedule}, v1.Taint{Key: Key, Value: "x", Effect: v1.TaintEffectNoExecute},
		v1.Taint{Key: "other", Effect: v1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		taints []v1.Taint
		patch  string
	}{
		"none":  {nil, ""},
		"other": {[]v1.Taint{other}, ""},
		"both effects": {
			[]v1.Taint{ours, other, once},
			`[{"op":"test","path":"/spec/taints/2","value":{"key":"` + Key + `","value":"x","effect":"NoExecute"}},{"op":"remove","path":"/spec/taints/2"},` +
				`{"op":"test","path":"/spec/taints/0","value":{"key":"` + Key + `","effect":"NoSchedule"}},{"op":"remove","path":"/spec/taints/0"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var patch string
			node := of(t, "n1", func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/n1" {
					body, _ := io.ReadAll(r.Body)
					patch = string(body)
				}
				reply(t, w, r, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1.NodeSpec{Taints: test.taints}})
			})
			if removed, err := node.Remove(t.Context()); err != nil || removed != (test.patch != "") {
				t.Errorf("removed %t, error %v", removed, err)
			}
			if patch != test.patch {
				t.Errorf("got patch %s, want %s", patch, test.patch)
			}
		})
	}
}

func TestRemoveReportsErrors(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"the Node object does not exist": func(w http.ResponseWriter, r *http.Request) { reply(t, w, r) },
		"read the taints of node n1":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"remove the taint " + Key + " from node n1": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			reply(t, w, r, v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: Key}}}})
		},
	} {
		if removed, err := of(t, "n1", answer).Remove(t.Context()); removed || err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: removed %t, error %v", name, removed, err)
		}
	}
}

func of(t *testing.T, name string, answer http.HandlerFunc) *Node {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	node, err := Of(name, &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// reply answers a request that lists the nodes or patches the first node.
func reply(t *testing.T, w http.ResponseWriter, r *http.Request, nodes ...v1.Node) {
	t.Helper()
	var answer any = v1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: nodes}
	if r.Method == http.MethodPatch {
		nodes[0].TypeMeta = metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}
		answer = nodes[0]
	} else if at := r.URL.Query().Get("fieldSelector"); at != "metadata.name=n1" {
		t.Errorf("the list has the field selector %q", at)
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		t.Error(err)
	}
}
