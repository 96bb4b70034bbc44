package chart

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

func TestInstall(t *testing.T) {
	s := startAPIServer(t)
	t.Run("every preset", s.testPresets)
	t.Run("upgrade", s.testUpgrade)
	t.Run("from one release to the next", s.testReleases)
	t.Run("plain manifests", s.testPlainManifests)
	t.Run("pods are admitted", s.testPodsAreAdmitted)
	t.Run("rights", s.testRights)
	t.Run("startup taint", s.testStartupTaint)
	t.Run("helm's command", s.testHelmCommand)
	t.Run("distributions", s.testDistributions)
}

var installed = []string{
	"serviceaccounts kube-ipvs", "daemonsets kube-ipvs", "clusterrolebindings kube-ipvs", "clusterroles kube-ipvs",
}

func (s *apiServer) testPresets(t *testing.T) {
	for name, m := range plain(t) {
		if err := s.install(t, m.values); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(installed, s.objects(t)); d != "" {
			t.Errorf("%s: objects (-want +got):\n%s", name, d)
		}
		s.uninstall(t)
		if left := s.objects(t); len(left) > 0 {
			t.Errorf("%s: uninstall left %v", name, left)
		}
	}
}

// testUpgrade upgrades from the defaults to a release with all features that do not need the Prometheus operator.
func (s *apiServer) testUpgrade(t *testing.T) {
	if err := s.install(t, values{}); err != nil {
		t.Fatal(err)
	}
	defer s.uninstall(t)
	more := parse(t, `{config: {clusterCIDR: 10.244.0.0/16}, metrics: {bindAddress: 0.0.0.0, service: {enabled: true}, dashboard: {enabled: true}}}`)
	if err := s.upgrade(t, more); err != nil {
		t.Fatal(err)
	}
	want := slices.Concat([]string{"configmaps kube-ipvs", "configmaps kube-ipvs-dashboard", installed[0], "services kube-ipvs-metrics"}, installed[1:])
	if d := cmp.Diff(want, s.objects(t)); d != "" {
		t.Errorf("objects (-want +got):\n%s", d)
	}
	if err := s.upgrade(t, parse(t, "updateStrategy: {type: Sometimes}")); err == nil {
		t.Error("an upgrade with invalid values succeeded")
	}
}

func (s *apiServer) testPlainManifests(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(plainDir, "*.yaml"))
	if err != nil || len(files) != len(plain(t)) {
		t.Errorf("plain manifests: %v, %v; want those of %v", files, err, slices.Sorted(maps.Keys(plain(t))))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), string(text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if d := cmp.Diff(installed, s.objects(t)); d != "" {
			t.Errorf("%s: objects (-want +got):\n%s", file, d)
		}
		if err := s.Delete(t.Context(), string(text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// testPodsAreAdmitted creates the pods of the DaemonSet. Helm itself does not report pods that the API server
// rejects.
func (s *apiServer) testPodsAreAdmitted(t *testing.T) {
	for name, v := range map[string]values{"default": {}, "everything": parse(t, everything)} {
		template := daemonSet(t, v).Spec.Template
		pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.GenerateName = "kube-ipvs-"
		options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
		admitted, err := s.admin.CoreV1().Pods(namespace).Create(t.Context(), pod, options)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if admitted.Spec.Priority == nil || *admitted.Spec.Priority < 2_000_000_000 {
			t.Errorf("%s: the pod's priority is %v, want that of system-node-critical", name, admitted.Spec.Priority)
		}
	}
}

// testRights compares the agent's rights with the expected ones, ignoring rights that every account has. It then runs
// the agent's watches.
func (s *apiServer) testRights(t *testing.T) {
	if err := s.install(t, values{}); err != nil {
		t.Fatal(err)
	}
	defer s.uninstall(t)
	var got []string
	for right, ask := range s.reviews(t) {
		if s.allowed(t, "kube-ipvs", ask) && !s.allowed(t, "another", ask) {
			got = append(got, right)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(slices.Sorted(maps.Keys(rights)), got); d != "" {
		t.Errorf("rights of the ServiceAccount (-want +got):\n%s", d)
	}
	s.watches(t)
}

// reviews returns a review for every verb on every resource of the API server.
func (s *apiServer) reviews(t *testing.T) map[string]*authorizationv1.ResourceAttributes {
	t.Helper()
	_, lists, err := s.admin.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*authorizationv1.ResourceAttributes{}
	for _, list := range lists {
		group, _, versioned := strings.Cut(list.GroupVersion, "/")
		if !versioned {
			group = ""
		}
		for _, resource := range list.APIResources {
			name, sub, _ := strings.Cut(resource.Name, "/")
			for _, verb := range append(resource.Verbs, "impersonate", "escalate", "bind") {
				right := strings.TrimSuffix(fmt.Sprintf("%s %s.%s", verb, resource.Name, group), ".")
				all[right] = &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: name, Subresource: sub}
			}
		}
	}
	return all
}

func user(account string) (name string, groups []string) {
	return "system:serviceaccount:" + namespace + ":" + account,
		[]string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
}

func (s *apiServer) allowed(t *testing.T, account string, ask *authorizationv1.ResourceAttributes) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: ask}}
	review.Spec.User, review.Spec.Groups = user(account)
	answer, err := s.admin.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// watches runs the agent's source with the rights of its ServiceAccount until it has received every resource.
func (s *apiServer) watches(t *testing.T) {
	t.Helper()
	name, groups := user("kube-ipvs")
	config, err := s.ClientFor(name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	source, err := watch.NewAPI(config, watch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = source.Run(t.Context()) }()
	for deadline := time.After(30 * time.Second); !source.Synced(); {
		select {
		case <-source.Changed():
		case <-deadline:
			t.Fatalf("the agent cannot read from the API server with the chart's rights: %v", source.LastError())
		}
	}
}

// testHelmCommand follows docs/install.md for users who have Go but not Helm.
func (s *apiServer) testHelmCommand(t *testing.T) {
	kubeconfig, err := s.AdminKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	helm := func(args ...string) string {
		c := exec.Command("go", append([]string{"tool", "helm"}, args...)...)
		c.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	helm("lint", "--strict", chartDir)
	notes := helm("install", releaseName, chartDir, "--namespace", namespace, "--set", "image.registry=registry.example",
		"-f", chartDir+"/presets/no-kube-proxy.yaml", "--set", "apiServer.host=192.0.2.10", "--set", "config.clusterCIDR=10.244.0.0/16")
	if !strings.Contains(notes, "kubectl -n kube-system rollout status ds/kube-ipvs") || strings.Contains(notes, "WARNING") {
		t.Errorf("notes of helm install:\n%s", notes)
	}
	helm("uninstall", releaseName, "--namespace", namespace)
	if left := s.objects(t); len(left) > 0 {
		t.Errorf("uninstall left %v", left)
	}
}
