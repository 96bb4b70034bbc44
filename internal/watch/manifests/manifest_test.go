package manifests

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// Every document of a file is read or causes a Problem, regardless of format and separators.
func TestNoDocumentIsIgnored(t *testing.T) {
	blocks := []string{
		`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "%s"}, "spec": {"clusterIP": "None"}}`,
		"{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"Service\",\n  \"metadata\": {\"name\": \"%s\"},\n  \"spec\": {\"clusterIP\": \"None\"}\n}",
		"apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: None}",
		`{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {clusterIP: None}}`,
		"{not: an object, name: %s}",
		"[%s]",
		"text %s",
	}
	rapid.Check(t, func(t *rapid.T) {
		var file strings.Builder
		n := rapid.IntRange(1, 5).Draw(t, "documents")
		for i := range n {
			kind := rapid.IntRange(0, len(blocks)-1).Draw(t, "kind")
			fmt.Fprintf(&file, blocks[kind], fmt.Sprintf("web-%d", i))
			separators := []string{"\n---\n", "\n...\n---\n# comment\n"}
			if json := kind < 2; json {
				separators = append(separators, "", "\n", "\n# comment\n\n")
			}
			file.WriteString(rapid.SampledFrom(separators).Draw(t, "separator"))
		}
		m := newManifestReader(watch.NewStore("")).read("services.yaml", []byte(file.String()))
		if read := len(m.records) + len(m.problems); read != n {
			t.Fatalf("only %d of %d documents were read or have a Problem: %v\n%s", read, n, m.problems, file.String())
		}
	})
}

func TestObjectsWithoutMarkers(t *testing.T) {
	const service = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "NAME"}, "spec": {"clusterIP": "None"}}`
	named := func(name string) string { return strings.Replace(service, "NAME", name, 1) }
	for what, test := range map[string]struct {
		file    string
		records int
		problem string
	}{
		"JSON objects":              {named("a") + "\n" + named("b") + named("c"), 3, ""},
		"a comment at the end":      {named("a") + "\n# the end\n", 1, ""},
		"comments between":          {named("a") + " # first\n# second\n" + named("b"), 2, ""},
		"an object that is cut off": {named("a") + "\n" + named("b")[:40], 1, "document 2, line 2"},
		"text after an object":      {named("a") + "\n\nkind: Service", 1, "must have an apiVersion and a kind"},
		"YAML in braces":            {"{apiVersion: v1, kind: Service}\n{apiVersion: v1}", 0, "more text follows the object"},
	} {
		m := newManifestReader(watch.NewStore("")).read("services.json", []byte(test.file))
		if len(m.records) != test.records {
			t.Errorf("%s: %d objects, want %d", what, len(m.records), test.records)
		}
		if text := fmt.Sprint(m.problems); test.problem == "" && len(m.problems) > 0 || !strings.Contains(text, test.problem) {
			t.Errorf("%s: problems %v, want %q", what, m.problems, test.problem)
		}
	}
}
