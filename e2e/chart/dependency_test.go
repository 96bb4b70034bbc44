package chart

import (
	"strings"
	"testing"

	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	corev1 "k8s.io/api/core/v1"
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

// TestTheTestIsNoAgent: `helm test` starts a pod that the DaemonSet does not adopt and that monitoring does not scrape.
func TestTheTestIsNoAgent(t *testing.T) {
	rel := mustRender(t, values{})
	if len(rel.Hooks) != 1 || !strings.Contains(rel.Hooks[0].Manifest, "kind: Pod") {
		t.Fatalf("hooks: %+v", rel.Hooks)
	}
	if strings.Contains(rel.Hooks[0].Manifest, "app.kubernetes.io/name: kube-ipvs\n") || strings.Contains(rel.Hooks[0].Manifest, "app.kubernetes.io/instance") {
		t.Errorf("the pod has labels of the agents:\n%s", rel.Hooks[0].Manifest)
	}
}
