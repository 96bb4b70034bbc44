package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// distributions lists the distributions with recorded objects in testdata/distributions. refusal is the chart's error while the distribution's own
// proxy runs. presets are the presets to use when that proxy is off. If divided is true, kube-proxy's DaemonSet can be kept off individual nodes.
var distributions = []struct {
	name, refusal string
	presets       []string
	divided       bool
}{
	{"kubeadm", "kube-proxy runs on 2 nodes (DaemonSet kube-system/kube-proxy)", []string{"kubeadm"}, true},
	{"k3s", "kube-proxy runs on 2 nodes (inside k3s)", []string{"k3s"}, false},
	{"k3d", "kube-proxy runs on 2 nodes (inside k3s)", []string{"k3d"}, false},
	{"rke2", "kube-proxy runs on 2 nodes (static pods kube-system/kube-proxy-NODE)", []string{"rke2"}, false},
	{"kubespray", "kube-proxy runs on 3 nodes (DaemonSet kube-system/kube-proxy)", []string{"kubespray"}, true},
	{"kops", "kube-proxy runs on 2 nodes (static pods kube-system/kube-proxy-NODE)", []string{"kops"}, false},
	{"talos", "kube-proxy runs on 3 nodes (DaemonSet kube-system/kube-proxy)", []string{"talos"}, true},
	{"eks", "kube-proxy runs on 3 nodes (DaemonSet kube-system/kube-proxy)", []string{"eks"}, true},
	{"aks", "kube-proxy runs on 3 nodes (DaemonSet kube-system/kube-proxy)", []string{"aks"}, false},
	{"gke", "kube-proxy runs on 1 node (static pods kube-system/kube-proxy-NODE)", nil, false},
	{"gke-dataplane-v2", "GKE Dataplane V2 runs on 2 nodes (DaemonSet kube-system/anetd)", nil, false},
	{"openshift", "OVN-Kubernetes runs on 6 nodes (DaemonSet openshift-ovn-kubernetes/ovnkube-node)", nil, false},
	{"openshift-kube-proxy", "kube-proxy runs on 6 nodes (DaemonSet openshift-kube-proxy/openshift-kube-proxy)", []string{"openshift"}, false},
	{"microk8s", "kube-proxy runs on 1 node (inside MicroK8s' kubelite, which always starts it)", []string{"microk8s"}, false},
	{"kind", "kube-proxy runs on 1 node (DaemonSet kube-system/kube-proxy)", []string{"kind"}, true},
}

// testDistributions checks that the chart cannot be installed while a distribution's own proxy runs, and can be installed with the distribution's
// preset when that proxy is off.
func (s *apiServer) testDistributions(t *testing.T) {
	for _, d := range distributions {
		t.Run(d.name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata/distributions", d.name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			recorded := string(text)
			if err := s.Apply(t.Context(), recorded); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Delete(t.Context(), recorded); err != nil {
					t.Error(err)
				}
			}()
			s.refused(t, values{}, d.refusal)
			if d.presets == nil {
				return
			}
			v := complete(t, d.presets...)
			if d.name == "microk8s" { // this preset allows both proxies to run
				s.installs(t, v)
				return
			}
			s.refused(t, v, d.refusal)
			if d.divided {
				s.divide(t)
				s.refused(t, v, d.refusal)
				s.installs(t, complete(t, append(d.presets, "take-over")...))
			}
			s.switchOff(t, recorded)
			s.installs(t, v)
		})
	}
}

func (s *apiServer) refused(t *testing.T, v values, reason string) {
	t.Helper()
	err := s.install(t, v)
	if err == nil {
		s.uninstall(t)
	}
	if err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("install: %v, want an error that contains %q", err, reason)
	}
}

func (s *apiServer) installs(t *testing.T, v values) {
	t.Helper()
	if err := s.install(t, v); err != nil {
		t.Errorf("install: %v", err)
		return
	}
	defer s.uninstall(t)
	agent, err := s.admin.AppsV1().DaemonSets(namespace).Get(t.Context(), "kube-ipvs", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if note, noted := agent.Annotations["kube-ipvs.io/kube-proxy-check"]; noted {
		t.Errorf("the DaemonSet says about the check: %s", note)
	}
}

// divide applies the guide's patch, which keeps kube-proxy off the agent's nodes. The patch must not remove the DaemonSet's own affinity. On EKS,
// that affinity excludes Fargate nodes.
func (s *apiServer) divide(t *testing.T) {
	t.Helper()
	sets := s.admin.AppsV1().DaemonSets(namespace)
	proxy, err := sets.Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kind, want := types.MergePatchType, []corev1.NodeSelectorRequirement{{Key: "kube-ipvs.io/agent", Operator: corev1.NodeSelectorOpDoesNotExist}}
	if proxy.Spec.Template.Spec.Affinity != nil {
		kind, want = types.JSONPatchType, append(expressions(proxy), want...)
	}
	strict := metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}
	proxy, err = sets.Patch(t.Context(), proxy.Name, kind, []byte(documentedPatch(t, kind)), strict)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, expressions(proxy)); d != "" {
		t.Errorf("affinity of kube-proxy (-want +got):\n%s", d)
	}
}

func expressions(proxy *appsv1.DaemonSet) []corev1.NodeSelectorRequirement {
	return proxy.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions
}

// switchOff deletes the objects of the distribution's proxy. In the annotations of k3s' nodes, it adds the flag that disables kube-proxy.
func (s *apiServer) switchOff(t *testing.T, recorded string) {
	t.Helper()
	var proxies []string
	for document := range strings.SplitSeq(recorded, "---\n") {
		if !strings.Contains(document, "kind: Node\n") {
			proxies = append(proxies, document)
		}
	}
	if err := s.Delete(t.Context(), strings.Join(proxies, "---\n")); err != nil {
		t.Fatal(err)
	}
	off := strings.ReplaceAll(recorded, `["server"`, `["server","--disable-kube-proxy","true"`)
	if off == recorded {
		return
	}
	if err := s.Apply(t.Context(), off); err != nil {
		t.Fatal(err)
	}
}
