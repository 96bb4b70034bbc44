package chart

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/common/util"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/startuptaint"
)

// testStartupTaint checks that startupTaint.enabled allows an agent to remove the taint from its own node, but to change nothing else on any node.
func (s *apiServer) testStartupTaint(t *testing.T) {
	const own, other = "own-node", "other-node"
	s.createTainted(t, own)
	s.createTainted(t, other)
	if err := s.install(t, values{}); err != nil {
		t.Fatal(err)
	}
	defer s.uninstall(t)
	agent := s.podOn(own)
	if _, err := of(t, own, agent).Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot patch resource") {
		t.Errorf("without startupTaint.enabled: error %v, want one about patch", err)
	}
	if err := s.upgrade(t, parse(t, "startupTaint: {enabled: true}")); err != nil {
		t.Fatal(err)
	}
	// A new policy does not take effect immediately.
	s.awaitDenial(t, agent, own)
	s.deniesOtherChanges(t, agent, own, other)
	if _, err := of(t, other, agent).Remove(t.Context()); err == nil {
		t.Error("the agent removed the taint from another node")
	}
	s.removesOnlyItsTaint(t, own, agent)
}

// deniesOtherChanges sends patches that also remove the taint, so that each is denied for its other change.
func (s *apiServer) deniesOtherChanges(t *testing.T, agent *rest.Config, own, other string) {
	t.Helper()
	node, err := s.admin.CoreV1().Nodes().Get(t.Context(), own, metav1.GetOptions{}) // the API server has added a taint
	if err != nil {
		t.Fatal(err)
	}
	kept := slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == startuptaint.Key })
	if err := patch(t, agent, own, values{"spec": values{"taints": kept}}); err != nil {
		t.Errorf("only the removal of the taint: %v", err)
	}
	const onlyThisTaint, onlyTaints = "may only remove the taint kube-ipvs.io/agent-not-ready", "may change only the taints of a node"
	for _, c := range []struct{ node, change, want string }{
		{other, "{}", "may change only its own node"},
		{own, "spec: {taints: []}", onlyThisTaint},
		{own, "spec: {taints: [{key: agent-was-here, effect: NoExecute}]}", onlyThisTaint},
		{own, "spec: {unschedulable: true}", onlyTaints},
		{own, "spec: {providerID: agent://was-here}", onlyTaints},
		{own, "spec: {podCIDR: 192.0.2.0/24, podCIDRs: [192.0.2.0/24]}", onlyTaints},
		{own, "metadata: {labels: {agent: was-here}}", onlyTaints},
		{own, "metadata: {labels: {example.com/mine: null}}", onlyTaints},
		{own, "metadata: {annotations: {agent: was-here}}", onlyTaints},
		{own, "metadata: {finalizers: [agent/was-here]}", onlyTaints},
		{own, "metadata: {ownerReferences: [{apiVersion: v1, kind: Node, name: other-node, uid: '0'}]}", onlyTaints},
		{own, "metadata: {generateName: agent-was-here}", onlyTaints},
		{own, "metadata: {selfLink: /agent/was/here}", onlyTaints},
	} {
		body := util.CoalesceTables(parse(t, c.change), values{"spec": values{"taints": kept}})
		if err := patch(t, agent, c.node, body); err == nil || !strings.Contains(err.Error(), "an agent of kube-ipvs "+c.want) {
			t.Errorf("%s, %s: error %v, want %q", c.node, c.change, err, c.want)
		}
	}
}

func (s *apiServer) createTainted(t *testing.T, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"example.com/mine": ""}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: startuptaint.Key, Effect: corev1.TaintEffectNoExecute}, {Key: "example.com/mine", Effect: corev1.TaintEffectNoSchedule},
		{Key: startuptaint.Key, Value: "true", Effect: corev1.TaintEffectNoSchedule},
	}}}
	nodes := s.admin.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
}

func (s *apiServer) removesOnlyItsTaint(t *testing.T, own string, agent *rest.Config) {
	t.Helper()
	if removed, err := of(t, own, agent).Remove(t.Context()); err != nil || !removed {
		t.Errorf("removed %t, error %v", removed, err)
	}
	if removed, err := of(t, own, agent).Remove(t.Context()); err != nil || removed {
		t.Errorf("the second time: removed %t, error %v", removed, err)
	}
	node, err := s.admin.CoreV1().Nodes().Get(t.Context(), own, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hasKey := func(key string) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
	}
	if hasKey(startuptaint.Key) || !hasKey("example.com/mine") {
		t.Errorf("taints: %v", node.Spec.Taints)
	}
}

// podOn returns a client configuration that impersonates the agent's pod on a node. A pod's token contains the name of its node.
func (s *apiServer) podOn(node string) *rest.Config {
	config := rest.CopyConfig(s.Client())
	name, groups := user("kube-ipvs")
	config.Impersonate = rest.ImpersonationConfig{
		UserName: name, Groups: groups, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
	return config
}

func of(t *testing.T, name string, config *rest.Config) *startuptaint.Node {
	t.Helper()
	node, err := startuptaint.Of(name, config)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// patch patches a node in a dry run.
func patch(t *testing.T, config *rest.Config, node string, body values) error {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	_, err = kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, text, options)
	return err
}

func (s *apiServer) awaitDenial(t *testing.T, config *rest.Config, node string) {
	t.Helper()
	body := parse(t, "metadata: {labels: {agent: was-here}}")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := patch(t, config, node, body)
		if err != nil && strings.Contains(err.Error(), "an agent of kube-ipvs may") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the policy denies nothing; the last error is %v", err)
		}
	}
}
