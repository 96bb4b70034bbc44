package pods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

// outcome describes how the command's pod ends on a node.
type outcome struct {
	log   string
	exit  int32
	state *corev1.ContainerState // if the pod does not end
}

// runPods acts as the kubelet: it sets the outcome of each new pod.
func runPods(ctx context.Context, t *testing.T, client kubernetes.Interface, of map[string]outcome) {
	pods := client.CoreV1().Pods("kube-system")
	watch, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	for event := range watch.ResultChan() {
		pod, is := event.Object.(*corev1.Pod)
		if !is || event.Type != "ADDED" {
			continue
		}
		o := of[pod.Spec.NodeName]
		state, phase := o.state, corev1.PodPending
		if state == nil {
			state, phase = &corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: o.exit}}, corev1.PodSucceeded
		}
		pod.Status.Phase, pod.Status.ContainerStatuses = phase, []corev1.ContainerStatus{{Name: agentContainer, State: *state}}
		if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
}

// TestTemporaryPods: on nodes without an agent, the command runs in temporary pods and always deletes them. A real
// API server validates the pods.
func TestTemporaryPods(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Config{})
	client, err := kubernetes.NewForConfig(cp.Client())
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]outcome{
		"well":   {log: "kube-ipvs: a message\n{\n  \"kind\": \"FindingList\",\nkube-ipvs: another\n  \"items\": []\n}\n"},
		"broken": {log: `{"kind": "FindingList", "items": [{"severity": "broken", "subject": "s", "problem": "p", "evidence": [], "remedy": "r"}]}`, exit: 1},
		"fails":  {log: "kube-ipvs: unknown flag: --nope\n", exit: 2},
		"image":  {state: &corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "registry.example: no such host"}}},
	}
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // /containerLogs/NAMESPACE/POD/CONTAINER
		pod, err := client.CoreV1().Pods("kube-system").Get(r.Context(), strings.Split(r.URL.Path, "/")[3], metav1.GetOptions{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		fmt.Fprint(w, outcomes[pod.Spec.NodeName].log)
	}))
	defer kubelet.Close()
	createNodes(t, client, kubelet.Listener.Addr().String(), outcomes)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go runPods(ctx, t, client, outcomes)
	cfg := Config{Client: *cp.Client(), Namespace: "kube-system", All: true, Parallel: 4, Timeout: 10 * time.Second, Image: "registry.example/kube-ipvs:v1"}
	q := fleet.Question{Command: "preflight", Extra: []string{"--ipvs-scheduler=wlc"}}
	var skipped []fleet.Skipped
	cfg.Skip = func(s []fleet.Skipped) { skipped = s }
	answers, left, err := ask(t, cfg, q)
	if err != nil || left != 0 || len(answers) != len(outcomes) {
		t.Fatalf("%+v, %d, %v", answers, left, err)
	}
	mustSkip(t, skipped)
	got := map[string]string{}
	for _, a := range answers {
		got[a.Node] = a.Error
	}
	for node, want := range map[string]string{
		"well": "", "broken": "", "fails": "unknown flag: --nope", "image": "its pod does not start (ErrImagePull: registry.example: no such host) within 10s",
	} {
		if (got[node] == "") != (want == "") || !strings.Contains(got[node], want) {
			t.Errorf("%s: %q, want %q", node, got[node], want)
		}
	}
	if r := merged(q, answers, left); r.Verdict != fleet.NoGo || r.ExitStatus != 1 {
		t.Errorf("%+v", r)
	}
	// An interrupted command also deletes its pods.
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	cfg.All, cfg.Nodes = false, []string{"image"}
	if _, err := Ask(short, cfg, q, func(a fleet.Answer, _ int) {
		if a.Error != "no answer before the command was stopped" {
			t.Errorf("wrong answer from an interrupted command: %+v", a)
		}
	}); err != nil {
		t.Error(err)
	}
	noneLeft(t, client)
}

func mustSkip(t *testing.T, got []fleet.Skipped) {
	t.Helper()
	var want []fleet.Skipped
	for _, label := range withoutAgentLabels {
		want = append(want, fleet.Skipped{Label: label, Nodes: 1})
	}
	if !slices.Equal(got, want) {
		t.Errorf("skipped: %v, want %v", got, want)
	}
}

// createNodes creates the nodes, including some that must not be queried.
func createNodes(t *testing.T, client kubernetes.Interface, kubelet string, outcomes map[string]outcome) {
	t.Helper()
	_, port, _ := net.SplitHostPort(kubelet)
	number, _ := strconv.Atoi(port)
	for name := range outcomes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, label := range withoutAgentLabels {
		key, value, _ := strings.Cut(label, "=")
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("no-agent-", i), Labels: map[string]string{key: value}}}
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

var withoutAgentLabels = []string{"eks.amazonaws.com/compute-type=auto", "eks.amazonaws.com/compute-type=fargate", "kubernetes.io/os=windows", "type=virtual-kubelet"}

// TestNodesOfTheChart: temporary pods run where the chart's agents do. These are the labels that the presets and the default values exclude.
func TestNodesOfTheChart(t *testing.T) {
	const chart = "../../../charts/kube-ipvs/"
	presets, err := filepath.Glob(chart + "presets/*.yaml")
	if err != nil || len(presets) == 0 {
		t.Fatal(err)
	}
	var excluded []string
	for _, file := range append(presets, chart+"values.yaml") {
		text, err := os.ReadFile(file)
		var values struct{ Affinity corev1.Affinity }
		if err := errors.Join(err, yaml.Unmarshal(text, &values)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if values.Affinity.NodeAffinity == nil {
			continue
		}
		for _, term := range values.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				if e.Operator != corev1.NodeSelectorOpNotIn {
					t.Errorf("%s: operator %s is not supported", file, e.Operator)
				}
				for _, value := range e.Values {
					excluded = append(excluded, e.Key+"="+value)
				}
			}
		}
	}
	excluded = append(excluded, corev1.LabelOSStable+"=windows") // the chart selects Linux
	var ours []string
	for _, exclusion := range withoutAgents {
		for _, value := range exclusion.values {
			ours = append(ours, exclusion.label+"="+value)
		}
	}
	slices.Sort(excluded)
	slices.Sort(ours)
	if !slices.Equal(ours, excluded) || !slices.Equal(ours, withoutAgentLabels) {
		t.Errorf("nodes with one of the labels %q are skipped, and the chart excludes %q", ours, excluded)
	}
}

func noneLeft(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	list, err := client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: temporaryLabel + "=" + temporaryName})
	left := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }) // a kubelet would delete these
	if err != nil || len(left) != 0 {
		t.Errorf("the command left %d pods behind, error %v", len(left), err)
	}
}

// TestTemporaryPodsHaveTheRightsOfTheAgent compares a temporary pod with the agent's pods. The chart's tests keep this manifest up to date.
func TestTemporaryPodsHaveTheRightsOfTheAgent(t *testing.T) {
	file, err := os.Open("../../../charts/manifests/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decoder := utilyaml.NewYAMLToJSONDecoder(file)
	var agents appsv1.DaemonSet
	for agents.Kind != "DaemonSet" {
		agents = appsv1.DaemonSet{}
		if err := decoder.Decode(&agents); err != nil {
			t.Fatalf("%v; is there a DaemonSet?", err)
		}
	}
	type rights struct {
		HostNetwork, HostPID bool
		DNSPolicy            corev1.DNSPolicy
		Tolerations          []corev1.Toleration
		Pod                  *corev1.PodSecurityContext
		Container            *corev1.SecurityContext
		Volumes              []corev1.Volume
		VolumeMounts         []corev1.VolumeMount
	}
	of := func(s *corev1.PodSpec) rights {
		c := s.Containers[0]
		return rights{s.HostNetwork, s.HostPID, s.DNSPolicy, s.Tolerations, s.SecurityContext, c.SecurityContext, s.Volumes, c.VolumeMounts}
	}
	temporary := (&Config{Image: "x"}).temporaryPod("node-1", "cleanup", []string{"kube-ipvs", "cleanup"})
	if d := cmp.Diff(of(&agents.Spec.Template.Spec), of(&temporary.Spec)); d != "" {
		t.Errorf("rights (-agent +temporary pod):\n%s", d)
	}
}

// TestPodsThatCompare: with a ServiceAccount and a ConfigMap, the pod can read Services as kube-proxy does.
func TestPodsThatCompare(t *testing.T) {
	cfg := Config{Image: "x", Account: "kube-proxy", KubeProxy: "kube-proxy", PullSecret: "pull", Timeout: time.Minute}
	line := []string{"kube-ipvs", "preflight", "--compare"}
	spec := cfg.temporaryPod("node-1", "preflight", line).Spec
	want := []string{"preflight", "--compare", "--hostname-override=node-1", "--config=/var/lib/kube-proxy/config.conf"}
	if got := spec.Containers[0].Args; !slices.Equal(got, want) || len(line) != 3 {
		t.Errorf("arguments %q", got)
	}
	if spec.ServiceAccountName != "kube-proxy" || spec.AutomountServiceAccountToken != nil || spec.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("%+v", spec)
	}
	if spec = (&Config{Image: "x"}).temporaryPod("node-1", "preflight", line).Spec; spec.ServiceAccountName != "" || *spec.AutomountServiceAccountToken {
		t.Error("without --compare, the pod has access to the API server")
	}
}
