package pods

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

const (
	wellDocument   = `{"kind": "Status", "view": {"node": {"version": "v0.1.0"}}}`
	unwellDocument = `{"kind": "Status", "findings": [{"severity": "broken", "subject": "agent", "problem": "no sync"}]}`
)

func ask(t *testing.T, cfg Config, q fleet.Question) (answers []fleet.Answer, left int, err error) {
	t.Helper()
	left, err = Ask(t.Context(), cfg, q, func(a fleet.Answer, _ int) { answers = append(answers, a) })
	slices.SortFunc(answers, func(a, b fleet.Answer) int { return strings.Compare(a.Node, b.Node) })
	return answers, left, err
}

func merged(q fleet.Question, answers []fleet.Answer, left int) fleet.Report {
	m := fleet.NewMerger(q, false)
	for _, a := range answers {
		m.Add(a)
	}
	return m.Report(left, "")
}

func agentOn(node string, phase corev1.PodPhase) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node, Namespace: "kube-system", Labels: map[string]string{"app.kubernetes.io/name": "kube-ipvs"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: agentContainer, Image: "kube-ipvs"}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

// unscheduledOn is a pod of a DaemonSet that the scheduler has not placed: only its affinity names its node.
func unscheduledOn(node, why string) corev1.Pod {
	pod := agentOn("", corev1.PodPending)
	pod.Name = "agent-" + node
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: why}}
	return pod
}

// TestAnswers: a node that fails does not delay other nodes. This API server does not support WebSockets, so exec
// uses SPDY.
func TestAnswers(t *testing.T) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for _, node := range []string{"well", "fails", "hangs", "endless", "forbidden", "huge", "broken"} {
		list.Items = append(list.Items, agentOn(node, corev1.PodRunning))
	}
	old := agentOn("well", corev1.PodRunning)
	old.Name, old.DeletionTimestamp = "agent-old", &metav1.Time{Time: time.Now()}
	stranger := agentOn("well", corev1.PodRunning)
	stranger.Name, stranger.Spec.Containers[0].Name, stranger.CreationTimestamp = "stranger", "web", metav1.Now()
	list.Items = append(list.Items, old, stranger, agentOn("pending", corev1.PodPending), unscheduledOn("unscheduled", "no free ports"))
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods"):
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		case podOf(r.URL.Path) == "agent-forbidden":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(apierrors.NewForbidden(corev1.Resource("pods"), "agent-forbidden", nil).Status())
		default:
			serveExec(w, r, func(pod string, line []string) reply {
				if want := []string{"kube-ipvs", "status", "--output=json"}; !slices.Equal(line, want) {
					t.Errorf("%s runs %q, want %q", pod, line, want)
				}
				return map[string]reply{
					"agent-well":    {stdout: wellDocument},
					"agent-fails":   {stdout: unwellDocument, exit: 3},
					"agent-hangs":   {hang: true},
					"agent-endless": {endless: true},
					"agent-huge":    {stdout: strings.Repeat("x", 2<<20)},
					// not an agent's answer
					"agent-broken": {stdout: "<html>", stderr: "kube-ipvs: no such command\n", exit: 2},
				}[pod]
			})
		}
	}))
	defer api.Close()
	cfg := Config{Client: rest.Config{Host: api.URL}, Namespace: "kube-system", All: true, Parallel: 8, Timeout: 10 * time.Second, answerLimit: 1 << 20}
	q := fleet.Question{Command: "status"}
	answers, left, err := ask(t, cfg, q)
	if err != nil || left != 0 {
		t.Fatal(left, err)
	}
	checkAnswers(t, answers)
	if report := merged(q, answers, left); report.ExitStatus != 3 || len(report.Silent) != 7 {
		t.Errorf("exit status %d, silent nodes %v", report.ExitStatus, report.Silent)
	}
	cfg.Nodes, cfg.All = []string{"well", "elsewhere"}, false
	answers, _, err = ask(t, cfg, q)
	if err != nil || len(answers) != 2 || !strings.Contains(answers[0].Error, "no agent pod") || answers[1].ExitStatus == nil {
		t.Errorf("wrong answers from two nodes: %+v, error %v", answers, err)
	}
}

func checkAnswers(t *testing.T, answers []fleet.Answer) {
	t.Helper()
	got := map[string]string{}
	for _, a := range answers {
		got[a.Node] = a.Error
		if a.ExitStatus != nil {
			got[a.Node] += fmt.Sprint(" exit ", *a.ExitStatus)
		}
	}
	for node, want := range map[string]string{
		"well": " exit 0", "fails": " exit 3", "hangs": "no answer within 10s", "endless": "no answer within 10s", "forbidden": "forbidden", "huge": "larger than 1 MiB",
		"broken": "no such command exit 2", "pending": "agent-pending is not running (Pending)",
		"unscheduled": "agent-unscheduled is not running (Pending): it is not scheduled: no free ports",
	} {
		if !strings.Contains(got[node], want) {
			t.Errorf("%s: %q, want %q", node, got[node], want)
		}
	}
}

// TestAgentFlags: plan and preflight run with the agent's flags, with variables expanded.
func TestAgentFlags(t *testing.T) {
	pod := agentOn("node-1", corev1.PodRunning)
	pod.Spec.Containers[0].Args = []string{"run", "--hostname-override=$(NODE_NAME)", "--config=/etc/$(FILE)"}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}, {Name: "FILE", Value: "c.yaml"},
	}
	if got := agentFlags(&pod); !slices.Equal(got, []string{"--hostname-override=node-1", "--config=/etc/c.yaml"}) {
		t.Errorf("%q", got)
	}
	pod.Spec.Containers[0].Args = nil
	if got := agentFlags(&pod); len(got) != 0 {
		t.Errorf("a container without arguments has the flags %q", got)
	}
}

// TestNoAgents: the error suggests the flag for another namespace.
func TestNoAgents(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}})
	}))
	defer api.Close()
	cfg := Config{Client: rest.Config{Host: api.URL}, Namespace: "elsewhere", Timeout: time.Second}
	if _, _, err := ask(t, cfg, fleet.Question{Command: "status"}); err == nil || !strings.Contains(err.Error(), "--agent-namespace") {
		t.Error(err)
	}
}

// operator returns a user with the documented permissions.
func operator(t *testing.T, cp *controlplane.ControlPlane, client kubernetes.Interface) *rest.Config {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "operator", Namespace: "kube-system"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/exec"}, Verbs: []string{"create"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "operator"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}
	if _, err := client.RbacV1().Roles("kube-system").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().RoleBindings("kube-system").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := cp.ClientFor("operator")
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestRealAPIServer: only the kubelet is a fake. The client uses WebSockets.
func TestRealAPIServer(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Config{})
	client, err := kubernetes.NewForConfig(cp.Client())
	if err != nil {
		t.Fatal(err)
	}
	config := operator(t, cp, client)
	var mu sync.Mutex
	asked := map[string][]string{}
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serveExec(w, r, func(pod string, line []string) reply {
			mu.Lock()
			defer mu.Unlock()
			asked[pod] = line
			if line[1] == "ui" {
				return reply{echoes: true, stderr: "the end of the input\n", exit: 4}
			}
			return map[string]reply{"agent-node-1": {stdout: wellDocument}, "agent-node-2": {stdout: unwellDocument, exit: 3}}[pod]
		})
	}))
	defer kubelet.Close()
	_, port, _ := net.SplitHostPort(kubelet.Listener.Addr().String())
	number, _ := strconv.Atoi(port)
	for _, name := range []string{"node-1", "node-2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
		if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod := agentOn(name, "")
		created, err := client.CoreV1().Pods("kube-system").Create(t.Context(), &pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		created.Status.Phase = corev1.PodRunning
		if _, err := client.CoreV1().Pods("kube-system").UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	testStream(t, Config{Client: *config, Namespace: "kube-system", Timeout: 20 * time.Second})
	q := fleet.Question{Command: "explain", Namespace: "shop", Name: "web:http", Extra: []string{"--from=10.244.1.7"}}
	answers, _, err := ask(t, Config{Client: *config, Namespace: "kube-system", Parallel: 2, Timeout: 20 * time.Second}, q)
	if err != nil {
		t.Fatal(err)
	}
	if len(answers) != 2 || answers[0].Error != "" || answers[0].ExitStatus == nil || answers[1].ExitStatus == nil || *answers[1].ExitStatus != 3 {
		t.Errorf("wrong answers %+v", answers)
	}
	want := []string{"kube-ipvs", "explain", "--output=json", "--from=10.244.1.7", "--", "shop/web:http"}
	if !slices.Equal(asked["agent-node-1"], want) || !slices.Equal(asked["agent-node-2"], want) {
		t.Errorf("the pods ran %q, want %q", asked, want)
	}
}

// testStream runs a command that echoes its input. Lines arrive while both directions are open, and the command ends when its input ends.
func testStream(t *testing.T, cfg Config) {
	names, err := Agents(t.Context(), cfg)
	if err != nil || !slices.Equal(names, []string{"node-1", "node-2"}) {
		t.Fatalf("Agents returns %q, %v", names, err)
	}
	in, input := io.Pipe()
	output, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Stream(t.Context(), cfg, "node-2", []string{"kube-ipvs", "ui"}, in, out) }()
	lines := bufio.NewReader(output)
	for _, line := range []string{"first\n", "second\n"} {
		if _, err := io.WriteString(input, line); err != nil {
			t.Fatal(err)
		}
		if got, err := lines.ReadString('\n'); got != line || err != nil {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	input.Close()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "exit code 4: the end of the input") {
		t.Errorf("the command ended with %v", err)
	}
	cfg.Nodes = []string{"node-9"}
	if err := Stream(t.Context(), cfg, "node-9", nil, strings.NewReader(""), io.Discard); err == nil || err.Error() != noAgent {
		t.Errorf("Stream to a node without an agent returns %v", err)
	}
}
