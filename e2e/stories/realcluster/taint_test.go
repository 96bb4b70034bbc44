package realcluster

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/startuptaint"
)

// TestStartupTaint adds a node whose kubelet registers with the taint. The agent removes the taint once the node's Services work.
func TestStartupTaint(t *testing.T) {
	labtest.Need(t)
	s := enter(t)
	s.asPrinted("docs/install.md", "helm upgrade")
	t.Cleanup(func() {
		s.helm("rollback", "kube-ipvs", "--namespace", "kube-system")
		s.agentsReady()
	})
	s.agentsReady()
	nodes, err := s.Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Stop()
	n, err := s.AddNode("--register-with-taints=" + startuptaint.Key + "=:NoSchedule")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.RemoveNode(n); err != nil {
			t.Error(err)
		}
		s.kubectl("delete", "node", n.Name)
	})
	registered := false
	for limit := time.After(patience); ; {
		var tainted bool
		select {
		case e := <-nodes.ResultChan():
			node, is := e.Object.(*corev1.Node)
			if !is || node.Name != n.Name {
				continue
			}
			tainted = slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == startuptaint.Key })
		case <-limit:
			t.Fatalf("the taint was not removed within %s; registered with it: %t", patience, registered)
		}
		if registered = registered || tainted; !registered {
			t.Fatalf("%s registered without the taint", n.Name)
		}
		if !tainted {
			break
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	if err := get(client, "http://"+n.IPv4+":30080/hostname"); err != nil {
		t.Errorf("the taint is gone, but %s does not serve the node port: %v", n.Name, err)
	}
	s.onlyTheTaint(n.Name)
}

// onlyTheTaint tries to change nodes with the token of the agent on a node.
func (s stage) onlyTheTaint(node string) {
	s.t.Helper()
	s.agentsReady()
	pod := s.agents()[node]
	if log := s.kubectl("-n", "kube-system", "logs", pod); !strings.Contains(log, "startup taint removed") {
		s.t.Errorf("the agent's log does not report the removal:\n%s", log)
	}
	token := strings.TrimSpace(s.kubectl("-n", "kube-system", "create", "token", "kube-ipvs", "--bound-object-kind=Pod", "--bound-object-name="+pod))
	config := rest.AnonymousClientConfig(s.API.Client())
	config.BearerToken = token
	for _, c := range []struct{ node, patch, want string }{
		{node, `{"metadata": {"labels": {"agent": "was-here"}}}`, "may change only the taints of a node"},
		{node, `{"spec": {"taints": [{"key": "agent", "effect": "NoSchedule"}]}}`, "may only remove the taint"},
		{s.Nodes[0].Name, `{"metadata": {"labels": {"agent": "was-here"}}}`, "may change only its own node"},
	} {
		_, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().Patch(s.t.Context(), c.node, types.MergePatchType, []byte(c.patch), metav1.PatchOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			s.t.Errorf("patch of %s with the agent's token and %s: error %v, want %q", c.node, c.patch, err, c.want)
		}
	}
}
