package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
)

// everyFeature renders every template, and changes few defaults.
const everyFeature = `
image: {registry: registry.example}
apiServer: {host: 192.0.2.10}
existingConfigMap: {name: other}
extraArgs: [--healthz-bind-address=0.0.0.0:10256]
openshift: {scc: {create: true}}
startupTaint: {enabled: true}
metrics:
  bindAddress: 0.0.0.0
  podMonitor: {enabled: true}
  prometheusRule: {enabled: true, clusterLabel: cluster}
  dashboard: {enabled: true}
`

// removable lists the values whose default users may remove with null.
var removable = []string{
	"nodeSelector", "nodeSelector.kubernetes.io/os", "tolerations", "resources", "resources.requests", "resources.requests.cpu", "resources.requests.memory",
	"podSecurityContext", "podSecurityContext.seccompProfile", "seLinuxOptions", "seLinuxOptions.level", "seLinuxOptions.type",
	"updateStrategy.rollingUpdate", "updateStrategy.rollingUpdate.maxUnavailable",
	"metrics.prometheusRule.runbookURL", "metrics.dashboard.labels", "metrics.dashboard.labels.grafana_dashboard",
}

// TestNullIsNotSet: `metrics:` without a value, as when everything below it is commented out, is null, and null removes the default. The chart works
// without it, or says that it is missing.
func TestNullIsNotSet(t *testing.T) {
	for _, path := range paths(load(t).Values, nil) {
		name, base := strings.Join(path, "."), everyFeature
		if strings.HasPrefix(name, "metrics.serviceMonitor") {
			base = strings.ReplaceAll(base, "podMonitor", "serviceMonitor")
		}
		t.Run(name, func(t *testing.T) {
			unset, null := parse(t, base), parse(t, base)
			delete(at(unset, path[:len(path)-1]), path[len(path)-1])
			at(null, path[:len(path)-1])[path[len(path)-1]] = nil
			rel, err := render(t, null)
			if err != nil {
				want := "missing property '" + path[len(path)-1] + "'"
				if _, unsetErr := render(t, unset); !strings.Contains(err.Error(), want) && (unsetErr == nil || err.Error() != unsetErr.Error()) {
					t.Errorf("error %v, want one that contains %q", err, want)
				}
				return
			}
			if slices.Contains(removable, name) {
				return
			}
			want := mustRender(t, unset)
			if d := cmp.Diff(want.Manifest+want.Hooks[0].Manifest+want.Info.Notes, rel.Manifest+rel.Hooks[0].Manifest+rel.Info.Notes); d != "" {
				t.Errorf("not as if it were not set (-want +got):\n%s", d)
			}
		})
	}
}

// TestNullInTheConfiguration: for the agent, null is not set, too.
func TestNullInTheConfiguration(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct{ Definitions map[string]object }
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	settings := paths(schema.Definitions["configuration"].fields(), nil)
	if len(settings) < 40 {
		t.Fatalf("values.schema.json has only %d settings", len(settings))
	}
	want := podOf(t, parse(t, "config: {kind: Configuration}"))
	for _, path := range settings {
		name := strings.Join(path, ".")
		if name == "apiVersion" || name == "kind" {
			continue
		}
		for _, format := range []string{"config", "kubeProxyConfig"} {
			if d := cmp.Diff(want, podOf(t, values{format: nested(name, nil)})); d != "" {
				t.Errorf("%s: {%s: null}: not as if it were not set (-want +got):\n%s", format, name, d)
			}
		}
	}
}

// object is an object in a JSON schema.
type object struct{ Properties map[string]object }

func (o object) fields() values {
	fields := values{}
	for name, field := range o.Properties {
		fields[name] = field.fields()
	}
	return fields
}

// podOf returns the DaemonSet's pod, without the hash that replaces the pod if its configuration changes.
func podOf(t *testing.T, v values) *appsv1.DaemonSet {
	t.Helper()
	ds := daemonSet(t, v)
	delete(ds.Spec.Template.Annotations, "checksum/config")
	return ds
}

// paths returns the path of each value and of each value in it.
func paths(v values, above []string) (all [][]string) {
	for _, key := range slices.Sorted(maps.Keys(v)) {
		path := append(slices.Clone(above), key)
		all = append(all, path)
		if inner, ok := v[key].(map[string]any); ok {
			all = append(all, paths(inner, path)...)
		}
	}
	return all
}

// at returns the values at a path, and creates them.
func at(v values, path []string) values {
	for _, key := range path {
		inner, ok := v[key].(map[string]any)
		if !ok {
			inner = values{}
			v[key] = inner
		}
		v = inner
	}
	return v
}
