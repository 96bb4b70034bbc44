package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestProbesFollowTheHealthAddress: with a liveness probe but no health server, the kubelet would restart the agent
// endlessly.
func TestProbesFollowTheHealthAddress(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{"{}", ":10256"},
		{"config: {healthzBindAddress: ''}", ""},
		{"config: {healthzBindAddress: null}", ":10256"},
		{"kubeProxyConfig: {healthzBindAddress: null}", ":10256"},
		{"kubeProxyConfig: {healthzBindAddress: ''}", ":10256"}, // in kube-proxy, an empty address means the default
		{"extraArgs: ['--healthz-bind-address=']", ""},
		{"extraArgs: [--healthz-port=0]", ""},
		{"{config: {healthzBindAddress: ''}, extraArgs: ['--healthz-bind-address=0.0.0.0:10256']}", ":10256"},
		{"{existingConfigMap: {name: other}, extraArgs: ['--healthz-bind-address=']}", ""},
		{"{config: {healthzBindAddress: '0.0.0.0:9999'}, healthPort: 9999}", ":9999"},
		{"config: {healthzBindAddress: '127.0.0.1:10256'}", "127.0.0.1:10256"},
		{"config: {healthzBindAddress: '[::1]:10256'}", "::1:10256"},
		{"config: {healthzBindAddress: '[::]:10256'}", ":10256"},
		{"kubeProxyConfig: {healthzBindAddress: 127.0.0.1}", "127.0.0.1:10256"},
	} {
		container := daemonSet(t, parse(t, c.values)).Spec.Template.Spec.Containers[0]
		for kind, probe := range map[string]*corev1.Probe{
			"startup": container.StartupProbe, "liveness": container.LivenessProbe, "readiness": container.ReadinessProbe,
		} {
			if got := target(&container, probe); got != c.want {
				t.Errorf("%s: the %s probe uses %q, want %q", c.values, kind, got, c.want)
			}
		}
		hasPort := slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == "health" })
		if hasPort != (c.want != "") {
			t.Errorf("%s: the container has a port \"health\": %t", c.values, hasPort)
		}
	}
}

// target returns the host and port of a probe, or empty strings if there is no probe.
func target(c *corev1.Container, p *corev1.Probe) string {
	if p == nil {
		return ""
	}
	for _, port := range c.Ports {
		if port.Name == p.HTTPGet.Port.StrVal {
			return fmt.Sprintf("%s:%d", p.HTTPGet.Host, port.ContainerPort)
		}
	}
	return "no port " + p.HTTPGet.Port.StrVal
}

// TestHelmTestAsksTheSocket: helm test would fail on a healthy node if it asked another socket.
func TestHelmTestAsksTheSocket(t *testing.T) {
	for values, want := range map[string]string{
		"{}":                           "[status]",
		"config: {statusSocket: null}": "[status]",
		"config: {statusSocket: ''}":   "",
		"config: {statusSocket: /run/kube-ipvs/other.sock}":                                      "[status --status-socket=/run/kube-ipvs/other.sock]",
		"{config: {statusSocket: ''}, extraArgs: ['--status-socket=/run/kube-ipvs/other.sock']}": "[status --status-socket=/run/kube-ipvs/other.sock]",
		"extraArgs: ['--status-socket=']":                                                        "",
	} {
		got := ""
		for _, hook := range mustRender(t, parse(t, values)).Hooks {
			var pod corev1.Pod
			if err := yaml.Unmarshal([]byte(hook.Manifest), &pod); err != nil {
				t.Fatal(err)
			}
			got += fmt.Sprint(pod.Spec.Containers[0].Args)
		}
		if got != want {
			t.Errorf("%s: the test runs %q, want %q", values, got, want)
		}
	}
}

// TestLabelsOfUsersAppearOnce: strict YAML parsers reject duplicate keys, and others use only one value.
func TestLabelsOfUsersAppearOnce(t *testing.T) {
	v := with(parse(t, everything), parse(t, `
commonLabels: {team: network, release: all, k8s-app: all}
podLabels: {k8s-app: kube-proxy}
podAnnotations: {prometheus.io/scrape: "false", kubectl.kubernetes.io/default-container: other}
metrics:
  bindAddress: "::"
  scrapeAnnotations: true
  serviceMonitor: {enabled: true, labels: {release: prometheus}}
  prometheusRule: {enabled: true, labels: {release: prometheus}}
  dashboard: {enabled: true, labels: {team: dashboards}}
`))
	manifest := mustRender(t, v).Manifest
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		if err := yaml.UnmarshalStrict([]byte(document), &map[string]any{}); err != nil {
			t.Errorf("%v\n%s", err, document)
		}
	}
	objects := decode(t, manifest)
	pod := daemonSet(t, v).Spec.Template
	for what, got := range map[string][2]string{
		"the label k8s-app of the pods":           {pod.Labels["k8s-app"], "kube-proxy"},
		"the annotation scrape of the pods":       {pod.Annotations["prometheus.io/scrape"], "false"},
		"the default container":                   {pod.Annotations["kubectl.kubernetes.io/default-container"], "other"},
		"the label release of the ServiceMonitor": {only[*monitoringv1.ServiceMonitor](t, objects).Labels["release"], "prometheus"},
		"the label release of the PrometheusRule": {only[*monitoringv1.PrometheusRule](t, objects).Labels["release"], "prometheus"},
	} {
		if got[0] != got[1] {
			t.Errorf("%s is %q, want %q", what, got[0], got[1])
		}
	}
}

func TestNamesAndRegistry(t *testing.T) {
	for _, c := range []struct{ values, name, image string }{
		{"{}", "kube-ipvs", "kube-ipvs/kube-ipvs"},
		{"nameOverride: proxy", "proxy", "kube-ipvs/kube-ipvs"},
		{"{nameOverride: proxy, fullnameOverride: ipvs}", "ipvs", "kube-ipvs/kube-ipvs"},
		{"{image: {registry: a.example}}", "kube-ipvs", "a.example/kube-ipvs/kube-ipvs"},
		{"{image: {registry: a.example}, global: {imageRegistry: b.example}}", "kube-ipvs", "b.example/kube-ipvs/kube-ipvs"},
	} {
		ds := daemonSet(t, parse(t, c.values))
		image, _, _ := strings.Cut(ds.Spec.Template.Spec.Containers[0].Image, ":")
		if ds.Name != c.name || image != c.image {
			t.Errorf("%s: name %q and image %q, want %q and %q", c.values, ds.Name, image, c.name, c.image)
		}
		// The alerts and the dashboard select this job label.
		if got := ds.Spec.Template.Labels["app.kubernetes.io/name"]; got != "kube-ipvs" {
			t.Errorf("%s: app.kubernetes.io/name is %q", c.values, got)
		}
	}
	if got := daemonSet(t, parse(t, "revisionHistoryLimit: 3")).Spec.RevisionHistoryLimit; got == nil || *got != 3 {
		t.Errorf("revisionHistoryLimit is %v, want 3", got)
	}
}

func TestOptionsOfMonitors(t *testing.T) {
	const options = `{enabled: true, interval: 30s, scrapeTimeout: 10s, jobLabel: team,
relabelings: [{action: labeldrop, regex: pod}], metricRelabelings: [{action: drop, sourceLabels: [__name__], regex: go_.*}]}`
	pods := only[*monitoringv1.PodMonitor](t, decode(t, mustRender(t, parse(t, "metrics: {bindAddress: '::', podMonitor: "+options+"}")).Manifest))
	services := only[*monitoringv1.ServiceMonitor](t, decode(t, mustRender(t, parse(t, "metrics: {bindAddress: '::', serviceMonitor: "+options+"}")).Manifest))
	pod, service := pods.Spec.PodMetricsEndpoints[0], services.Spec.Endpoints[0]
	if pods.Spec.JobLabel != "team" || services.Spec.JobLabel != "team" {
		t.Errorf("job labels %q and %q", pods.Spec.JobLabel, services.Spec.JobLabel)
	}
	if pod.ScrapeTimeout != "10s" || service.ScrapeTimeout != "10s" {
		t.Errorf("scrape timeouts %q and %q", pod.ScrapeTimeout, service.ScrapeTimeout)
	}
	for kind, of := range map[string][2][]monitoringv1.RelabelConfig{
		"PodMonitor":     {pod.RelabelConfigs, pod.MetricRelabelConfigs},
		"ServiceMonitor": {service.RelabelConfigs, service.MetricRelabelConfigs},
	} {
		// The node label comes first, so that users' relabelings can change it.
		if len(of[0]) != 2 || of[0][0].TargetLabel != "node" || of[0][1].Action != "labeldrop" {
			t.Errorf("relabelings of the %s: %+v", kind, of[0])
		}
		if len(of[1]) != 1 || of[1][0].Regex != "go_.*" {
			t.Errorf("metric relabelings of the %s: %+v", kind, of[1])
		}
	}
}

func TestAlertsCanBeChanged(t *testing.T) {
	rules := func(alerts string) map[string]monitoringv1.Rule {
		v := parse(t, "metrics: {bindAddress: '::', prometheusRule: {enabled: true, alerts: "+alerts+"}}")
		found := map[string]monitoringv1.Rule{}
		for _, rule := range only[*monitoringv1.PrometheusRule](t, decode(t, mustRender(t, v).Manifest)).Spec.Groups[0].Rules {
			found[rule.Alert] = rule
		}
		return found
	}
	all := rules("{}")
	changed := rules("{KubeIPVSDrift: {enabled: false}, KubeIPVSDown: {for: 5m, severity: page}}")
	if _, on := changed["KubeIPVSDrift"]; on || len(changed) != len(all)-1 {
		t.Errorf("%d of %d alerts rendered with KubeIPVSDrift disabled; KubeIPVSDrift present: %t", len(changed), len(all), on)
	}
	if down := changed["KubeIPVSDown"]; down.For == nil || *down.For != "5m" || down.Labels["severity"] != "page" || down.Expr != all["KubeIPVSDown"].Expr {
		t.Errorf("KubeIPVSDown: %+v", down)
	}
	for name := range all {
		if _, err := render(t, parse(t, "metrics: {prometheusRule: {alerts: {"+name+": {enabled: false}}}}")); err != nil {
			t.Errorf("the schema does not list the alert %s: %v", name, err)
		}
	}
}

// scc contains the fields of OpenShift's SecurityContextConstraints (security.openshift.io/v1) that the chart sets.
type scc struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	AllowHostNetwork         bool                `json:"allowHostNetwork"`
	AllowHostPorts           bool                `json:"allowHostPorts"`
	AllowHostDirVolumePlugin bool                `json:"allowHostDirVolumePlugin"`
	AllowHostPID             bool                `json:"allowHostPID"`
	AllowHostIPC             bool                `json:"allowHostIPC"`
	AllowPrivilegedContainer bool                `json:"allowPrivilegedContainer"`
	AllowPrivilegeEscalation bool                `json:"allowPrivilegeEscalation"`
	ReadOnlyRootFilesystem   bool                `json:"readOnlyRootFilesystem"`
	RequiredDropCapabilities []corev1.Capability `json:"requiredDropCapabilities"`
	AllowedCapabilities      []corev1.Capability `json:"allowedCapabilities"`
	RunAsUser                sccRule             `json:"runAsUser"`
	SELinuxContext           sccRule             `json:"seLinuxContext"`
	FSGroup                  sccRule             `json:"fsGroup"`
	SupplementalGroups       sccRule             `json:"supplementalGroups"`
	SeccompProfiles          []string            `json:"seccompProfiles"`
	Volumes                  []string            `json:"volumes"`
	Users                    []string            `json:"users"`
}

type sccRule struct {
	Type           string                 `json:"type"`
	SELinuxOptions *corev1.SELinuxOptions `json:"seLinuxOptions,omitempty"`
}

// TestOpenShiftConstraints: the constraints allow exactly what the pod needs.
func TestOpenShiftConstraints(t *testing.T) {
	for values, seccomp := range map[string]string{
		"":                         "runtime/default",
		"hostPID: true":            "runtime/default",
		"podSecurityContext: null": "runtime/default",
		"podSecurityContext: {seccompProfile: null}":                                               "runtime/default",
		"podSecurityContext: {seccompProfile: {type: Unconfined}}":                                 "unconfined",
		"podSecurityContext: {seccompProfile: {type: Localhost, localhostProfile: agents/a.json}}": "localhost/agents/a.json",
	} {
		t.Run(values, func(t *testing.T) { checkConstraints(t, values, seccomp) })
	}
}

func checkConstraints(t *testing.T, values, seccomp string) {
	t.Helper()
	var got scc
	var others []string
	for document := range strings.SplitSeq(mustRender(t, parse(t, "openshift: {scc: {create: true}}\n"+values)).Manifest, "\n---\n") {
		if !strings.Contains(document, "kind: SecurityContextConstraints") {
			others = append(others, document)
		} else if err := yaml.UnmarshalStrict([]byte(document), &got); err != nil {
			t.Fatal(err)
		}
	}
	pod := only[*appsv1.DaemonSet](t, decode(t, strings.Join(others, "\n---\n"))).Spec.Template.Spec
	container := pod.Containers[0].SecurityContext
	anyone := sccRule{Type: "RunAsAny"}
	want := scc{
		APIVersion: "security.openshift.io/v1", Kind: "SecurityContextConstraints", Metadata: got.Metadata,
		AllowHostNetwork: pod.HostNetwork, AllowHostPorts: pod.HostNetwork, AllowHostDirVolumePlugin: true, AllowHostPID: pod.HostPID,
		AllowPrivilegeEscalation: *container.AllowPrivilegeEscalation, ReadOnlyRootFilesystem: *container.ReadOnlyRootFilesystem,
		RequiredDropCapabilities: container.Capabilities.Drop, AllowedCapabilities: container.Capabilities.Add,
		RunAsUser: anyone, FSGroup: anyone, SupplementalGroups: anyone,
		SELinuxContext:  sccRule{Type: "MustRunAs", SELinuxOptions: container.SELinuxOptions},
		SeccompProfiles: []string{seccomp},
		// The token is a projected volume. The other types are common for extraVolumes.
		Volumes: []string{"configMap", "emptyDir", "hostPath", "projected", "secret"},
		Users:   []string{"system:serviceaccount:kube-system:kube-ipvs"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("constraints (-want +got):\n%s", d)
	}
	if got.Metadata.Name != "kube-ipvs" || got.Metadata.Labels["app.kubernetes.io/name"] != "kube-ipvs" {
		t.Errorf("metadata %+v", got.Metadata)
	}
}
