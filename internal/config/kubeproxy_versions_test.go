package config

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// kubeProxyVersions contains the fields of kube-proxy's configuration in several versions of Kubernetes.
type kubeProxyVersions struct {
	date     string
	versions []string
	fields   []versionedField
}

type versionedField struct {
	path, typ string
	versions  []string
}

// readKubeProxyFields reads the file that e2e/testbed/cmd/kubeproxyfields writes.
func readKubeProxyFields(t *testing.T) (k kubeProxyVersions) {
	t.Helper()
	content, err := os.ReadFile("testdata/kube-proxy-fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		words := strings.Fields(line)
		if i == 0 {
			k.date, k.versions = words[0], words[1:]
			continue
		}
		f := versionedField{words[0], words[1], words[2:]}
		if len(f.versions) == 0 {
			f.versions = k.versions
		}
		k.fields = append(k.fields, f)
	}
	return k
}

// sentence is the paragraph in docs/configuration.md.
func (k kubeProxyVersions) sentence() string {
	last := len(k.versions) - 1
	return fmt.Sprintf("The agent accepts every field of kube-proxy's configuration in Kubernetes\n%s and %s (%d fields, read from\n"+
		"the modules on %s with `go run ./e2e/testbed/cmd/kubeproxyfields`).",
		strings.Join(k.versions[:last], ", "), k.versions[last], len(k.fields), k.date)
}

// TestConfigurationOfEveryVersion sets every field of each version. The agent must know each field and accept its type.
func TestConfigurationOfEveryVersion(t *testing.T) {
	k := readKubeProxyFields(t)
	for _, version := range k.versions {
		t.Run(version, func(t *testing.T) {
			file := map[string]any{}
			for _, f := range k.fields {
				if slices.Contains(f.versions, version) {
					set(file, strings.Split(f.path, "."), f.sample())
				}
			}
			file["apiVersion"], file["kind"] = kubeProxyFormat.version, kubeProxyFormat.kind
			content, err := json.Marshal(file)
			if err != nil {
				t.Fatal(err)
			}
			l, err := (&Flags{File: "f.json"}).load(content)
			if err != nil {
				t.Fatal(err)
			}
			for _, warning := range l.Warnings {
				if strings.Contains(warning, "unknown") {
					t.Error(warning)
				}
			}
			if l.Scheduler != "wlc" || !l.MasqueradeAll || l.AllowExternalIPs != "true" {
				t.Errorf("the settings do not have the file's values: %+v", l.Settings)
			}
		})
	}
}

func set(in map[string]any, path []string, value any) {
	if len(path) == 1 {
		in[path[0]] = value
		return
	}
	inner, ok := in[path[0]].(map[string]any)
	if !ok {
		inner = map[string]any{}
		in[path[0]] = inner
	}
	set(inner, path[1:], value)
}

// sample returns a valid value that is not zero.
func (f versionedField) sample() any {
	for path, value := range map[string]string{
		"mode": "ipvs", "ipvs.scheduler": "wlc", "detectLocalMode": "ClusterCIDR", "clusterCIDR": "10.244.0.0/16", "logging.format": "json",
		"healthzBindAddress": "0.0.0.0:1", "metricsBindAddress": "0.0.0.0:2",
	} {
		if f.path == path {
			return value
		}
	}
	switch strings.TrimPrefix(f.typ, "*") {
	case "bool":
		return true
	case "int32", "float32", "VerbosityLevel":
		return 7
	case "Duration", "metav1.Duration", "TimeOrMetaDuration":
		return "40s"
	case "[]string":
		return []string{"10.0.0.0/8"}
	case "map[string]bool":
		return map[string]bool{"AllowServiceExternalIPs": true}
	case "VModuleConfiguration":
		return []map[string]any{{"filePattern": "proxier", "verbosity": 9}}
	}
	return "one"
}
