package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/startuptaint"
)

// TestAsADependency: another chart depends on this one, with a condition, and sets its values and the global ones.
func TestAsADependency(t *testing.T) {
	for enabled, want := range map[string]bool{"": true, "enabled: true, ": true, "enabled: false, ": false} {
		parent := &chartv2.Chart{Metadata: &chartv2.Metadata{APIVersion: chartv2.APIVersionV2, Name: "platform", Version: "1.0.0", Dependencies: []*chartv2.Dependency{
			{Name: "kube-ipvs", Version: ">=0.0.0-0", Repository: "file://../kube-ipvs", Condition: "kube-ipvs.enabled"},
		}}}
		parent.AddDependency(load(t))
		v := parse(t, "{global: {imagePullSecrets: [everywhere]}, kube-ipvs: {"+enabled+"config: {ipvs: {scheduler: wrr}}}}")
		rel, err := renderChart(t, parent, v)
		if err != nil {
			t.Errorf("%q: %v", enabled, err)
			continue
		}
		if has := strings.Contains(rel.Manifest, "kind: DaemonSet"); has != want || want && !strings.Contains(rel.Manifest, "everywhere") {
			t.Errorf("%q: the manifest contains the DaemonSet: %t, want %t, with the global pull secret\n%s", enabled, has, want, rel.Manifest)
		}
	}
}

// TestOptionsOfPods: what users set reaches the pods, beside what the chart needs.
func TestOptionsOfPods(t *testing.T) {
	ds := daemonSet(t, with(parse(t, everything), parse(t, `
initContainers: [{name: modules, image: registry.example/modules}]
extraContainers: [{name: sidecar, image: registry.example/sidecar}]
podSecurityContext: {supplementalGroups: [1000]}
hostPID: true
`)))
	pod := ds.Spec.Template.Spec
	probe := pod.Containers[0].StartupProbe
	for what, ok := range map[string]bool{
		"pull secrets":     len(pod.ImagePullSecrets) == 2 && pod.ImagePullSecrets[0] == corev1.LocalObjectReference{Name: "everywhere"},
		"init container":   len(pod.InitContainers) == 1 && pod.InitContainers[0].Name == "modules",
		"extra container":  len(pod.Containers) == 2 && pod.Containers[0].Name == "kube-ipvs" && pod.Containers[1].Name == "sidecar",
		"startup probe":    probe.PeriodSeconds == 2 && probe.FailureThreshold == 8640 && probe.HTTPGet.Path == "/readyz",
		"security context": len(pod.SecurityContext.SupplementalGroups) == 1 && pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
		"host's processes": pod.HostPID,
		"annotation":       ds.Annotations["example.com/owner"] == "network",
	} {
		if !ok {
			t.Errorf("%s: not as set", what)
		}
	}
	if pod := daemonSet(t, values{}).Spec.Template.Spec; pod.HostPID || len(pod.ImagePullSecrets) > 0 || len(pod.Containers) != 1 {
		t.Errorf("by default: %+v", pod)
	}
}

// TestTheTestRunsBesideAnAgent: `helm test` asks the agent of its own node, and some nodes have none.
func TestTheTestRunsBesideAnAgent(t *testing.T) {
	for name, v := range map[string]values{"default": {}, "eks": complete(t, "eks"), "take-over": presets(t, "kubeadm", "take-over"), "everything": parse(t, everything)} {
		rel := mustRender(t, v)
		test := only[*corev1.Pod](t, decode(t, rel.Hooks[0].Manifest))
		agent := daemonSet(t, v)
		if test.Spec.Affinity == nil || test.Spec.Affinity.PodAffinity == nil || test.Namespace != agent.Namespace {
			t.Errorf("%s: the pod in namespace %s has the affinity %v, want one to the agents in namespace %s", name, test.Namespace, test.Spec.Affinity, agent.Namespace)
			continue
		}
		want := []corev1.PodAffinityTerm{{LabelSelector: agent.Spec.Selector, TopologyKey: corev1.LabelHostname}}
		if d := cmp.Diff(want, test.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution); d != "" {
			t.Errorf("%s: affinity to pods (-want +got):\n%s", name, d)
		}
		// A node with the startup taint is not well yet.
		tolerated := slices.DeleteFunc(agent.Spec.Template.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == startuptaint.Key })
		if d := cmp.Diff(tolerated, test.Spec.Tolerations); d != "" {
			t.Errorf("%s: tolerations (-want +got):\n%s", name, d)
		}
	}
}

// TestTheTestIsNoAgent: `helm test` starts a pod that the DaemonSet does not adopt and that monitoring does not scrape.
func TestTheTestIsNoAgent(t *testing.T) {
	rel := mustRender(t, values{})
	if len(rel.Hooks) != 1 || !strings.Contains(rel.Hooks[0].Manifest, "kind: Pod") {
		t.Fatalf("hooks: %+v", rel.Hooks)
	}
	labels := only[*corev1.Pod](t, decode(t, rel.Hooks[0].Manifest)).Labels
	if _, has := labels["app.kubernetes.io/instance"]; has || labels["app.kubernetes.io/name"] == "kube-ipvs" {
		t.Errorf("the pod has labels of the agents: %v", labels)
	}
}
