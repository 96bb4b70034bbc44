package pods

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

const (
	// temporaryLabel marks temporary pods. Agents have a different value, so find does not select temporary pods.
	temporaryLabel = "app.kubernetes.io/name"
	temporaryName  = "kube-ipvs-once"
	// extraTime is added to the deadline of a pod. A pod ends at its deadline even if the command cannot delete it.
	extraTime = time.Minute
	pollEvery = 500 * time.Millisecond
)

// withoutAgents lists the labels of nodes on which agents do not run: the chart's node selector and presets exclude them.
var withoutAgents = []struct {
	label  string
	values []string
}{
	{corev1.LabelOSStable, []string{"windows"}},
	{"type", []string{"virtual-kubelet"}},
	{"eks.amazonaws.com/compute-type", []string{"fargate", "auto"}},
}

// withoutAgent returns the label that keeps agents off a node, or "".
func withoutAgent(node *corev1.Node) string {
	for _, exclusion := range withoutAgents {
		if value := node.Labels[exclusion.label]; slices.Contains(exclusion.values, value) {
			return exclusion.label + "=" + value
		}
	}
	return ""
}

// nodeNames returns the nodes on which agents can run.
func (cfg *Config) nodeNames(ctx context.Context, client kubernetes.Interface) (names []string, err error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	counts := map[string]int{}
	for i := range list.Items {
		if label := withoutAgent(&list.Items[i]); label != "" {
			counts[label]++
		} else {
			names = append(names, list.Items[i].Name)
		}
	}
	var skipped []fleet.Skipped
	for _, label := range slices.Sorted(maps.Keys(counts)) {
		skipped = append(skipped, fleet.Skipped{Label: label, Nodes: counts[label]})
	}
	if cfg.Skip != nil {
		cfg.Skip(skipped)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no node to query; %s", cmp.Or(fleet.SkippedText(skipped), "the cluster has none"))
	}
	slices.Sort(names)
	return names, nil
}

// removeLeftovers deletes finished pods that earlier commands left behind. Another command may still be going to read a younger pod.
func (cfg *Config) removeLeftovers(ctx context.Context, client kubernetes.Interface) error {
	pods := client.CoreV1().Pods(cfg.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: temporaryLabel + "=" + temporaryName})
	if err != nil {
		return fmt.Errorf("list pods of earlier commands in namespace %s: %w", cfg.Namespace, err)
	}
	for _, p := range list.Items {
		if finished := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed; finished && pastDeadline(&p) {
			if err := pods.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete pod %s of an earlier command: %w", p.Name, err)
			}
		}
	}
	return nil
}

// pastDeadline reports whether the command that created a temporary pod has given up on it.
func pastDeadline(pod *corev1.Pod) bool {
	seconds := pod.Spec.ActiveDeadlineSeconds
	return seconds != nil && time.Since(pod.CreationTimestamp.Time) > time.Duration(*seconds)*time.Second
}

func (cfg *Config) askTemporary(all context.Context, client kubernetes.Interface, node string, q fleet.Question, line []string) (answer fleet.Answer) {
	answer.Node = node
	ctx, cancel := context.WithTimeout(all, cfg.Timeout)
	defer cancel()
	pods := client.CoreV1().Pods(cfg.Namespace)
	pod, err := pods.Create(ctx, cfg.temporaryPod(node, q.Command, line), metav1.CreateOptions{})
	if err != nil {
		answer.Error = fmt.Sprintf("create a pod on this node in namespace %s: %v", cfg.Namespace, err)
		return answer
	}
	answer.Pod = pod.Name
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(all), cfg.Timeout)
		defer cancel()
		if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			answer.Error = strings.TrimPrefix(fmt.Sprintf("%s; delete pod %s: %v", answer.Error, pod.Name, err), "; ")
		}
	}()
	status, problem, err := cfg.untilEnd(ctx, client, pod.Name)
	if err == nil {
		answer.ExitStatus = &status
		err = cfg.readLog(ctx, client, q, &answer)
	}
	switch {
	case err != nil && all.Err() != nil:
		answer.Error = "no answer before the command was stopped"
	case err != nil && ctx.Err() != nil:
		answer.Error = fmt.Sprintf("%s within %s", problem, cfg.Timeout)
	case err != nil:
		answer.Error = fmt.Sprintf("read the result of pod %s: %v", pod.Name, err)
	}
	return answer
}

// untilEnd waits until a pod ends and returns its exit status. If ctx ends first, problem is the reason why the pod
// has not ended.
func (cfg *Config) untilEnd(ctx context.Context, client kubernetes.Interface, name string) (status int, problem string, err error) {
	problem = "no answer"
	for {
		pod, err := client.CoreV1().Pods(cfg.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return 0, problem, ctx.Err()
		case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
			return 0, problem, err
		case err != nil: // may pass; giving up would end the command in the pod
			problem = fmt.Sprintf("the state of its pod could not be read (%v)", err)
		default:
			status, waits, ended := progress(pod)
			if ended {
				return status, "", nil
			}
			problem = cmp.Or(waits, "its pod has not ended")
		}
		select {
		case <-ctx.Done():
			return 0, problem, ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

func progress(pod *corev1.Pod) (status int, problem string, ended bool) {
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.State.Terminated != nil:
			return int(c.State.Terminated.ExitCode), "", true
		case c.State.Waiting != nil && c.State.Waiting.Message != "":
			problem = fmt.Sprintf("its pod does not start (%s: %s)", c.State.Waiting.Reason, c.State.Waiting.Message)
		}
	}
	if pod.Status.Phase == corev1.PodFailed { // rejected by the kubelet
		problem = fmt.Sprintf("its pod does not start (%s: %s)", pod.Status.Reason, pod.Status.Message)
	}
	return 0, problem, false
}

func (cfg *Config) readLog(ctx context.Context, client kubernetes.Interface, q fleet.Question, answer *fleet.Answer) error {
	most := int64(cmp.Or(cfg.answerLimit, MaxAnswer))
	text, err := client.CoreV1().Pods(cfg.Namespace).GetLogs(answer.Pod, &corev1.PodLogOptions{Container: agentContainer, LimitBytes: &most}).DoRaw(ctx)
	if err != nil {
		return err
	}
	document, messages := splitLog(text)
	setDocument(answer, q, document, messages)
	return nil
}

// splitLog separates the document on stdout from the messages on stderr, because the log of a pod contains both.
// Messages begin with a letter.
func splitLog(text []byte) (document, messages []byte) {
	for line := range bytes.Lines(text) {
		if bytes.ContainsAny(line[:1], "{}[] ") {
			document = append(document, line...)
		} else {
			messages = append(messages, line...)
		}
	}
	return document, messages
}

// temporaryPod returns a pod with the rights of the agent. It can access the API server only with a ServiceAccount.
func (cfg *Config) temporaryPod(node, command string, line []string) *corev1.Pod {
	fromHost := func(name, path string, kind corev1.HostPathType) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "kube-ipvs-" + command + "-", Namespace: cfg.Namespace, Labels: map[string]string{temporaryLabel: temporaryName}},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, DNSPolicy: corev1.DNSDefault, RestartPolicy: corev1.RestartPolicyNever,
			ActiveDeadlineSeconds: new(int64((cfg.Timeout + extraTime).Seconds())), AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
			Tolerations:     []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{
				Name: agentContainer, Image: cfg.Image, Command: line[:1], Args: line[1:],
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), Privileged: new(false), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}},
					SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"},
				},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "sysctls", MountPath: "/host/proc/sys/net"}, {Name: "xtables-lock", MountPath: "/run/xtables.lock"},
					{Name: "status", MountPath: "/run/kube-ipvs"},
				},
			}},
			Volumes: []corev1.Volume{
				fromHost("sysctls", "/proc/sys/net", corev1.HostPathDirectory), fromHost("xtables-lock", "/run/xtables.lock", corev1.HostPathFileOrCreate),
				fromHost("status", "/run/kube-ipvs", corev1.HostPathDirectoryOrCreate),
			},
		},
	}
	container := &pod.Spec.Containers[0]
	if cfg.Account != "" {
		pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = cfg.Account, nil
		container.Args = append(slices.Clone(container.Args), "--hostname-override="+node)
	}
	if cfg.KubeProxy != "" {
		const name, path = "kube-proxy", "/var/lib/kube-proxy"
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: cfg.KubeProxy}},
		}})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
		container.Args = append(container.Args, "--config="+path+"/config.conf")
	}
	if cfg.PullSecret != "" {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: cfg.PullSecret}}
	}
	return pod
}
