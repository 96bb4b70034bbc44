package chart

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

const (
	root      = "../.."
	chartDir  = root + "/charts/kube-ipvs"
	plainDir  = root + "/charts/manifests"
	namespace = "kube-system"
)

// cluster is the Kubernetes version of the tests' API server.
var cluster = &common.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}

// values override the chart's defaults.
type values = map[string]any

func load(t *testing.T) *chartv2.Chart {
	t.Helper()
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// presets merges values files of the chart, as Helm does.
func presets(t *testing.T, names ...string) values {
	t.Helper()
	merged := values{}
	for _, name := range names {
		v, err := common.ReadValuesFile(filepath.Join(chartDir, "presets", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		merged = util.CoalesceTables(v, merged)
	}
	return merged
}

// complete returns the values of presets, and adds the API server's address if the user must set one. It leaves out the openshift values, because the
// tests and their API server do not support SecurityContextConstraints.
func complete(t *testing.T, names ...string) values {
	t.Helper()
	v := presets(t, names...)
	delete(v, "openshift")
	if server, ok := v["apiServer"].(map[string]any); ok && server["host"] == nil {
		server["host"] = "192.0.2.10"
	}
	return v
}

func presetNames(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartDir, "presets", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("presets: %v, %v", files, err)
	}
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(filepath.Base(file), ".yaml")
	}
	return names
}

func with(base values, more values) values {
	merged := maps.Clone(base)
	maps.Copy(merged, more)
	return merged
}

// parse parses values as in a values file.
func parse(t *testing.T, text string) values {
	t.Helper()
	v := values{}
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// render renders the chart as `helm template` does.
func render(t *testing.T, v values) (*release.Release, error) {
	t.Helper()
	return renderChart(t, load(t), v)
}

func renderChart(t *testing.T, c *chartv2.Chart, v values) (*release.Release, error) {
	t.Helper()
	install := action.NewInstall(action.NewConfiguration(action.ConfigurationSetLogger(slog.NewTextHandler(io.Discard, nil))))
	install.ReleaseName, install.Namespace, install.DryRunStrategy = "kube-ipvs", namespace, action.DryRunClient
	install.KubeVersion = cluster // the default in tests is 1.20
	r, err := install.RunWithContext(t.Context(), c, v)
	if err != nil {
		return nil, err
	}
	rel, ok := r.(*release.Release)
	if !ok {
		return nil, fmt.Errorf("helm returned a release of type %T", r)
	}
	return rel, nil
}

func mustRender(t *testing.T, v values) *release.Release {
	t.Helper()
	rel, err := render(t, v)
	if err != nil {
		t.Fatal(err)
	}
	return rel
}

// everything enables every optional object and field.
const everything = `
image: {registry: registry.example:5000, digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
imagePullSecrets: [{name: registry}]
global: {imagePullSecrets: [everywhere, {name: registry}]}
fullnameOverride: ipvs
commonLabels: {team: network}
config: {clusterCIDR: "10.244.0.0/16,fd00:10:244::/56", ipvs: {scheduler: wrr}, logging: {format: json}}
apiServer: {host: "fd00::1", port: 443, required: true}
extraArgs: [--log-level=debug]
extraEnv: [{name: GOMEMLIMIT, value: 200MiB}]
startupProbe: {periodSeconds: 2}
annotations: {example.com/owner: network}
extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-extra"}}]
extraVolumes: [{name: kubeconfig, secret: {secretName: kube-ipvs}}]
extraVolumeMounts: [{name: kubeconfig, mountPath: /etc/kubeconfig, readOnly: true}]
resources: {requests: {cpu: 1, memory: 128Mi}, limits: {memory: 1Gi}}
affinity: {nodeAffinity: {}}
tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists, effect: NoSchedule}]
updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 3}}
podAnnotations: {example.com/why: because}
podLabels: {k8s-app: kube-proxy}
startupTaint: {enabled: true}
serviceAccount: {name: proxy, annotations: {example.com/role: none}}
metrics:
  bindAddress: "::"
  scrapeAnnotations: true
  serviceMonitor: {enabled: true, labels: {release: prometheus}, namespace: monitoring, interval: 15s}
  prometheusRule: {enabled: true, labels: {release: prometheus}, namespace: monitoring}
  dashboard: {enabled: true, annotations: {k8s-sidecar-target-directory: Network}}
`

// plain returns the manifests for users without Helm, by file name.
func plain(t *testing.T) map[string]struct {
	values  values
	comment string
} {
	type manifest = struct {
		values  values
		comment string
	}
	const address = "REPLACE-WITH-THE-ADDRESS-OF-THE-API-SERVER"
	return map[string]manifest{
		"default": {presets(t, "default"), "For nodes without kube-proxy, where another program serves the Service \"kubernetes\"."},
		"no-kube-proxy": {with(presets(t, "no-kube-proxy"), parse(t, "apiServer: {required: true, host: "+address+"}")),
			"For a cluster that never had kube-proxy. Replace " + address + " first."},
		"kubeadm": {presets(t, "kubeadm"), "For a cluster made by kubeadm, after kube-proxy was removed: the agent reads kube-proxy's ConfigMap."},
		"kubeadm-take-over": {presets(t, "kubeadm", "take-over"),
			"For a cluster made by kubeadm, node by node: the agent runs on nodes with the label kube-ipvs.io/agent=true."},
	}
}

func TestPlainManifests(t *testing.T) {
	for name, m := range plain(t) {
		t.Run(name, func(t *testing.T) {
			head := "# " + m.comment + "\n# Rendered from charts/kube-ipvs; docs/install.md describes the steps.\n"
			goldentest.Compare(t, filepath.Join(plainDir, name+".yaml"), head+withoutHelm(mustRender(t, m.values).Manifest))
		})
	}
}

// withoutHelm removes Helm's labels and annotations.
func withoutHelm(manifest string) string {
	var kept strings.Builder
	for line := range strings.Lines(manifest) {
		switch field := strings.TrimSpace(line); {
		case strings.HasPrefix(field, "helm.sh/chart:"), strings.HasPrefix(field, "app.kubernetes.io/managed-by:"):
		case strings.HasPrefix(line, "# Source:"):
		default:
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func TestRenderOfEverything(t *testing.T) {
	rel := mustRender(t, parse(t, everything))
	goldentest.Compare(t, "testdata/everything.golden.yaml", rel.Manifest)
}

func TestNotes(t *testing.T) {
	for name, v := range map[string]values{
		"default":    {},
		"take-over":  presets(t, "kubeadm", "take-over"),
		"everything": parse(t, everything),
		"monitored":  with(presets(t, "kubeadm"), parse(t, "metrics: {podMonitor: {enabled: true}}")),
	} {
		t.Run(name, func(t *testing.T) {
			goldentest.Compare(t, "testdata/notes-"+name+".golden.txt", mustRender(t, v).Info.Notes)
		})
	}
}

func TestEveryPresetIsRendered(t *testing.T) {
	for _, name := range presetNames(t) {
		v := complete(t, name)
		if platform, ok := presets(t, name)["openshift"]; ok {
			v["openshift"] = platform
		}
		if _, err := render(t, v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
