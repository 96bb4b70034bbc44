package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestPodsRestartForWhatNeedsIt: pods are replaced only if a changed setting needs a restart. The running agent applies
// all other changes.
func TestPodsRestartForWhatNeedsIt(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\|[^|]*\\|[^|]*\\| (?:`([^`|]*)`)? *\\| (immediately|after a restart) \\|")
	settings := row.FindAllStringSubmatch(string(text), -1)
	if len(settings) < 20 {
		t.Fatalf("docs/configuration.md has only %d settings; has the format of its table changed?", len(settings))
	}
	for _, s := range settings {
		path, when := s[1], s[3]
		// The schema accepts every default. A setting without a default is a string or a list.
		var value any = "anything"
		if s[2] != "" {
			if err := yaml.Unmarshal([]byte(s[2]), &value); err != nil {
				t.Fatal(err)
			}
		}
		config := nested(path, value)
		_, restarts := daemonSet(t, values{"config": config}).Spec.Template.Annotations["checksum/config"]
		if restarts != (when == "after a restart") {
			t.Errorf("%s applies %s according to the docs; a change replaces the pods: %t", path, when, restarts)
		}
	}
}

// nested is a configuration with one setting: {a: {b: value}} for a.b.
func nested(path string, value any) values {
	first, rest, deeper := strings.Cut(path, ".")
	if deeper {
		return values{first: nested(rest, value)}
	}
	return values{first: value}
}
