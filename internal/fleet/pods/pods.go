// Package pods finds the agents' pods and runs commands in them, through the API server's pods/exec. It needs no
// other access and opens no port.
//
// May import: fleet, client-go, and the API types.
package pods

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

const (
	agentLabels    = "app.kubernetes.io/name=kube-ipvs"
	agentContainer = "kube-ipvs"
	// MaxAnswer limits a node's output. The output of a node with 10,000 Services is a tenth of this limit.
	MaxAnswer = 64 << 20
	maxErrors = 16 << 10
	// maxMessages limits the lines on stderr that are kept beside a document.
	maxMessages = 5

	noAgent = "no agent pod runs on this node"
)

// Config selects the agents to query.
type Config struct {
	Client    rest.Config
	Namespace string
	// Nodes are the nodes to query. If it is empty, Ask selects some, or all nodes if All is true.
	Nodes []string
	All   bool
	// Parallel is the number of nodes to query at the same time. Timeout applies to each node.
	Parallel int
	Timeout  time.Duration
	// Image is the image of temporary pods for the command, and PullSecret its pull secret. Without an image, the
	// command runs in the agents' pods.
	Image, PullSecret string
	// Account is the ServiceAccount of temporary pods, and KubeProxy the ConfigMap with kube-proxy's configuration.
	// Without an Account, the pods cannot access the API server.
	Account, KubeProxy string

	// Skip is called with the nodes that are not queried because agents do not run there; it may be nil.
	Skip func([]fleet.Skipped)

	answerLimit int // for tests; MaxAnswer if zero
}

// Ask calls take with the answer of each selected node, one at a time. It returns the number of nodes that it did not
// query, because there are too many or ctx ended. Ask does not retain the answers.
func Ask(ctx context.Context, cfg Config, q fleet.Question, take func(answer fleet.Answer, asking int)) (notAsked int, err error) {
	line, err := q.Line()
	if err != nil {
		return 0, err
	}
	client, err := kubernetes.NewForConfig(&cfg.Client)
	if err != nil {
		return 0, err
	}
	names, left, ask, err := cfg.asking(ctx, client, q, line)
	if err != nil {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(max(cfg.Parallel, 1))
	var mu sync.Mutex // while take runs, at most cfg.Parallel answers wait in their buffers
	for i, name := range names {
		if ctx.Err() != nil {
			left += len(names) - i
			break
		}
		group.Go(func() error {
			answer := ask(name)
			mu.Lock()
			defer mu.Unlock()
			take(answer, len(names))
			return nil
		})
	}
	return left, group.Wait()
}

// asking returns the nodes to query, the number of remaining nodes, and a function that queries a node.
func (cfg *Config) asking(ctx context.Context, client kubernetes.Interface, q fleet.Question, line []string) (
	names []string, left int, ask func(node string) fleet.Answer, err error,
) {
	within, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if cfg.Image == "" {
		agents, err := find(within, client, cfg.Namespace)
		if err != nil {
			return nil, 0, nil, err
		}
		names, left = cfg.choose(within, client, slices.Sorted(maps.Keys(agents)), q)
		return names, left, func(node string) fleet.Answer { return cfg.ask(ctx, client, node, agents[node], q, line) }, nil
	}
	if err := cfg.removeLeftovers(within, client); err != nil {
		return nil, 0, nil, err
	}
	if len(cfg.Nodes) == 0 {
		if names, err = cfg.nodeNames(within, client); err != nil {
			return nil, 0, nil, err
		}
	}
	names, left = cfg.choose(within, client, names, q)
	return names, left, func(node string) fleet.Answer { return cfg.askTemporary(ctx, client, node, q, line) }, nil
}

func (cfg *Config) choose(ctx context.Context, client kubernetes.Interface, names []string, q fleet.Question) (chosen []string, left int) {
	if len(cfg.Nodes) > 0 {
		return slices.Compact(slices.Sorted(slices.Values(cfg.Nodes))), 0
	}
	var near map[string]bool
	if !cfg.All && len(names) > fleet.MaxNodes {
		near = withEndpoint(ctx, client, q)
	}
	return fleet.Choose(names, near, cfg.All)
}

func find(ctx context.Context, client kubernetes.Interface, namespace string) (map[string]*corev1.Pod, error) {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: agentLabels})
	if err != nil {
		return nil, fmt.Errorf("list the agents' pods in namespace %s: %w", namespace, err)
	}
	agents := map[string]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		isAgent := slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == agentContainer })
		node := nodeOf(pod)
		if other := agents[node]; isAgent && node != "" && (other == nil || better(pod, other)) {
			agents[node] = pod
		}
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("namespace %s has no kube-ipvs pod (label %s); set --agent-namespace to the agents' namespace; "+
			"if kube-ipvs is not installed, use preflight --image", namespace, agentLabels)
	}
	return agents, nil
}

// nodeOf returns the pod's node. A pod of a DaemonSet names its node even if it cannot be scheduled, for example because another pod uses one
// of its ports.
func nodeOf(pod *corev1.Pod) string {
	affinity := pod.Spec.Affinity
	if pod.Spec.NodeName != "" || affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return pod.Spec.NodeName
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// better reports whether to query pod a of a node rather than pod b. A node can have two pods during an update of the
// DaemonSet.
func better(a, b *corev1.Pod) bool {
	if x, y := silence(a) == "", silence(b) == ""; x != y {
		return x
	}
	return a.CreationTimestamp.After(b.CreationTimestamp.Time)
}

// silence returns the reason why a pod cannot respond, or "" if it can.
func silence(pod *corev1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "the agent's pod " + pod.Name + " is being deleted"
	case pod.Status.Phase != corev1.PodRunning:
		return fmt.Sprintf("the agent's pod %s is not running (%s)%s", pod.Name, cmp.Or(pod.Status.Phase, "unknown"), unscheduled(pod))
	}
	return ""
}

// unscheduled returns the scheduler's reason for not placing a pod, or "" if there is none.
func unscheduled(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return ": it is not scheduled: " + c.Message
		}
	}
	return ""
}

// withEndpoint returns the nodes with an endpoint of the Service. An error affects only which nodes are selected, not
// their answers.
func withEndpoint(ctx context.Context, client kubernetes.Interface, q fleet.Question) map[string]bool {
	namespace, name := q.Service()
	if name == "" {
		return nil
	}
	list, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return nil
	}
	nodes := map[string]bool{}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.NodeName != nil {
				nodes[*e.NodeName] = true
			}
		}
	}
	return nodes
}

func (cfg *Config) ask(all context.Context, client kubernetes.Interface, node string, pod *corev1.Pod, q fleet.Question, line []string) fleet.Answer {
	answer := fleet.Answer{Node: node}
	if pod == nil {
		answer.Error = noAgent
		return answer
	}
	answer.Pod = pod.Name
	if answer.Error = silence(pod); answer.Error != "" {
		return answer
	}
	if q.AsAgent() {
		line = slices.Concat(line, agentFlags(pod))
	}
	ctx, cancel := context.WithTimeout(all, cfg.Timeout)
	defer cancel()
	most := cmp.Or(cfg.answerLimit, MaxAnswer)
	stdout, stderr := &limited{max: most, full: cancel}, &limited{max: maxErrors, full: func() {}}
	err := cfg.run(ctx, client, pod, line, remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
	status := 0
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		status, err = exit.Code, nil
	}
	switch {
	case stdout.exceeds():
		answer.Error = fmt.Sprintf("the answer is larger than %d MiB", most>>20)
	case err != nil && all.Err() != nil:
		answer.Error = "no answer before the command was stopped"
	case err != nil && ctx.Err() != nil:
		answer.Error = fmt.Sprintf("no answer within %s", cfg.Timeout)
	case apierrors.IsForbidden(err):
		answer.Error = fmt.Sprintf("not allowed: %v; grant the permission to create pods/exec in namespace %s", err, cfg.Namespace)
	case err != nil:
		answer.Error = fmt.Sprintf("run %s in pod %s: %v", line[0], pod.Name, err)
	default:
		answer.ExitStatus = &status
		setDocument(&answer, q, stdout.bytes(), stderr.bytes())
	}
	return answer
}

func setDocument(answer *fleet.Answer, q fleet.Question, output, messages []byte) {
	if document := documentOf(q, output); json.Valid(document) {
		if answer.Document = document; *answer.ExitStatus != 0 {
			answer.Messages = lastLines(messages)
		}
		return
	}
	answer.Error = cmp.Or(strings.TrimSpace(string(messages)), fmt.Sprintf("exit status %d without an answer", *answer.ExitStatus))
}

func lastLines(text []byte) (lines []string) {
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-maxMessages):]
}

func documentOf(q fleet.Question, output []byte) []byte {
	output = bytes.TrimSpace(output)
	if q.Text() && len(output) > 0 {
		output, _ = json.Marshal(string(output)) // marshaling a string never fails
	}
	return output
}

// agentFlags returns the agent's flags from its pod. Like the kubelet, it expands variables.
func agentFlags(pod *corev1.Pod) []string {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == agentContainer })
	container := pod.Spec.Containers[i]
	var pairs []string
	for _, e := range container.Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
			value = pod.Spec.NodeName
		}
		pairs = append(pairs, "$("+e.Name+")", value)
	}
	variables := strings.NewReplacer(pairs...)
	var flags []string
	for _, arg := range container.Args[min(1, len(container.Args)):] { // the first is the command
		flags = append(flags, variables.Replace(arg))
	}
	return flags
}

// run uses WebSockets. It falls back to SPDY if the API server, or a proxy in front of it, does not support WebSockets.
func (cfg *Config) run(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, line []string, streams remotecommand.StreamOptions) error {
	url := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: agentContainer, Command: line, Stdin: streams.Stdin != nil, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	sockets, err := remotecommand.NewWebSocketExecutor(&cfg.Client, "GET", url.String())
	if err != nil {
		return err
	}
	spdy, err := remotecommand.NewSPDYExecutor(&cfg.Client, "POST", url)
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, streams)
}

// limited stores output up to a limit and discards the rest. The command may still write to it after a timeout.
type limited struct {
	max  int
	full func() // called for each write beyond the limit

	mu       sync.Mutex
	text     bytes.Buffer // not embedded: io.Copy would use its ReadFrom, which ignores the limit
	exceeded bool
}

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exceeded = l.exceeded || l.text.Len()+len(p) > l.max; l.exceeded {
		l.full()
		return len(p), nil
	}
	return l.text.Write(p)
}

func (l *limited) exceeds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exceeded
}

func (l *limited) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Bytes()
}
