package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

const readmeHead = `# kube-ipvs

<!-- Written by "go test -update" in e2e/chart from the comments in values.yaml; change the text there. -->

This chart runs the [kube-ipvs](../../README.md) agent on every node. [Install](../../docs/install.md) helps you choose a preset, and
[Replace kube-proxy](../../docs/replace-kube-proxy.md) describes how to migrate a cluster node by node.

    helm install kube-ipvs ./charts/kube-ipvs --namespace kube-system -f ./charts/kube-ipvs/presets/PRESET.yaml

| preset | for |
|---|---|
| [default](presets/default.yaml) | nodes without kube-proxy, where another program serves the Service ` + "`kubernetes`" + ` |
| [no-kube-proxy](presets/no-kube-proxy.yaml) | a cluster that never had kube-proxy; needs ` + "`--set apiServer.host=ADDRESS`" + ` |
| [kubeadm](presets/kubeadm.yaml) | a cluster created by kubeadm; reads kube-proxy's own ConfigMap |
| the name of a distribution, such as [k3s](presets/k3s.yaml) | [that distribution](../../docs/distributions/README.md) |
| [take-over](presets/take-over.yaml) | replacing kube-proxy node by node; combine it with another preset |

To install without Helm, use the rendered manifests in [charts/manifests](../manifests).

## Values

| value | default | meaning |
|---|---|---|
`

// documented is a value of the chart, its default, and the comment above it.
type documented struct{ path, value, meaning string }

func TestReadme(t *testing.T) {
	var text strings.Builder
	text.WriteString(readmeHead)
	for _, v := range documentedValues(t) {
		fmt.Fprintf(&text, "| `%s` | `%s` | %s |\n", v.path, v.value, v.meaning)
	}
	goldentest.Compare(t, filepath.Join(chartDir, "README.md"), text.String())
}

func documentedValues(t *testing.T) []documented {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file yaml.Node
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return walk(t, "", file.Content[0])
}

// walk returns the values that have a comment. A value without a comment must be a group.
func walk(t *testing.T, prefix string, mapping *yaml.Node) (all []documented) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		path := strings.TrimPrefix(prefix+"."+key.Value, ".")
		_, meaning, commented := strings.Cut(key.HeadComment, "# -- ")
		switch {
		case commented:
			all = append(all, documented{path, compact(t, value), strings.ReplaceAll(meaning, "\n# ", " ")})
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			all = append(all, walk(t, path, value)...)
		default:
			t.Errorf("values.yaml, line %d: %s has no comment that begins with \"# -- \"", key.Line, path)
		}
	}
	return all
}

func compact(t *testing.T, n *yaml.Node) string {
	t.Helper()
	var value any
	if err := n.Decode(&value); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSchemaKnowsEveryValue: the schema and values.yaml contain the same values.
func TestSchemaKnowsEveryValue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chartDir, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for name := range load(t).Values {
		if _, ok := schema.Properties[name]; !ok {
			t.Errorf("values.schema.json lacks %s", name)
		}
		delete(schema.Properties, name)
	}
	delete(schema.Properties, "enabled") // only a chart that depends on this one sets it
	for name := range schema.Properties {
		t.Errorf("values.schema.json has %s, but values.yaml does not", name)
	}
}
