package chart

import (
	"io"
	"log/slog"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

const releaseName = "kube-ipvs"

// apiServer is a real API server. No controllers run, so a DaemonSet has no pods.
type apiServer struct {
	*controlplane.ControlPlane
	admin   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient
	helm    *action.Configuration
}

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	cp := controlplane.Start(t, controlplane.Config{})
	kubeconfig, err := cp.AdminKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	flags, where := genericclioptions.NewConfigFlags(false), namespace
	flags.KubeConfig, flags.Namespace = &kubeconfig, &where
	helm := action.NewConfiguration(action.ConfigurationSetLogger(slog.NewTextHandler(io.Discard, nil)))
	if err := helm.Init(flags, namespace, "secret"); err != nil {
		t.Fatal(err)
	}
	return &apiServer{cp, kubernetes.NewForConfigOrDie(cp.Client()), dynamic.NewForConfigOrDie(cp.Client()), helm}
}

func (s *apiServer) install(t *testing.T, v values) error {
	t.Helper()
	install := action.NewInstall(s.helm)
	install.ReleaseName, install.Namespace, install.WaitStrategy = releaseName, namespace, kube.HookOnlyStrategy
	_, err := install.RunWithContext(t.Context(), load(t), v)
	return err
}

func (s *apiServer) upgrade(t *testing.T, v values) error {
	t.Helper()
	upgrade := action.NewUpgrade(s.helm)
	upgrade.Namespace, upgrade.WaitStrategy = namespace, kube.HookOnlyStrategy
	_, err := upgrade.RunWithContext(t.Context(), releaseName, load(t), v)
	return err
}

func (s *apiServer) uninstall(t *testing.T) {
	t.Helper()
	uninstall := action.NewUninstall(s.helm)
	uninstall.WaitStrategy = kube.HookOnlyStrategy
	if _, err := uninstall.Run(releaseName); err != nil {
		t.Fatalf("uninstall: %v", err)
	}
}

// kinds lists the kinds of the chart's objects, except those of the Prometheus operator.
var kinds = []schema.GroupVersionResource{
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "services"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
}

func (s *apiServer) objects(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, kind := range kinds {
		list, err := s.dynamic.Resource(kind).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kube-ipvs"})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			found = append(found, kind.Resource+" "+o.GetName())
		}
	}
	return found
}
