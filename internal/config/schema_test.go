package config

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

// The chart's schema lists the fields of a configuration file, so that `helm lint` finds misspelled fields. This test generates the definition
// "configuration". The rest of the file is written by hand.
func TestChartSchema(t *testing.T) {
	const file = "../../charts/kube-ipvs/values.schema.json"
	const begin, end = "\n    \"configuration\": ", "\n    },\n"
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no definition \"configuration\" that ends with a comma", file)
	}
	definition := strings.TrimSuffix(fieldSchema("", "    "), "\n    }")
	goldentest.Compare(t, file, before+begin+definition+end+after)
}

// fieldSchema returns the schema of a field, or of a mapping with one line per field. A null field is not set.
func fieldSchema(path, indent string) string {
	all := ourFields()
	if _, leaf := all[path]; leaf {
		return leafSchema(path)
	}
	inner := indent + "  "
	var properties []string
	for _, name := range all.below(path) {
		properties = append(properties, inner+`  "`+name+`": `+fieldSchema(strings.TrimPrefix(path+"."+name, "."), inner+"  "))
	}
	return "{\n" + inner + `"type": ["object", "null"],` + "\n" + inner + `"additionalProperties": false,` + "\n" + inner + `"properties": {` + "\n" +
		strings.Join(properties, ",\n") + "\n" + inner + "}\n" + indent + "}"
}

func leafSchema(path string) string {
	switch path {
	case "apiVersion":
		return asJSON(map[string]any{"const": ourFormat.version})
	case "kind":
		return asJSON(map[string]any{"const": ourFormat.kind})
	}
	row := rowOf(path)
	v := row.value(&Settings{})
	schema := map[string]any{"description": row.meaning}
	switch {
	case v.choices != nil:
		schema["enum"] = append([]any{nil}, anys(v.choices)...)
		return asJSON(schema)
	case v.bounds != nil:
		schema["type"], schema["minimum"], schema["maximum"] = []string{"integer", "null"}, v.bounds[0], v.bounds[1]
		return asJSON(schema)
	}
	switch v.kind {
	case kindText:
		schema["type"] = []string{"string", "null"}
	case kindBool:
		schema["type"] = []string{"boolean", "null"}
	case kindSwitch:
		schema["enum"] = []any{nil, true, false, automatic}
	case kindNumber:
		schema["type"] = []string{"number", "null"}
	case kindDuration: // 0 needs no unit
		schema["type"], schema["minimum"], schema["maximum"] = []string{"string", "integer", "null"}, 0, 0
		schema["pattern"] = `^[+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
	case kindList:
		schema["type"], schema["items"] = []string{"array", "string", "null"}, map[string]any{"type": "string"}
	}
	return asJSON(schema)
}

func anys(words []string) (list []any) {
	for _, w := range words {
		list = append(list, w)
	}
	return list
}

// asJSON encodes a value that is always valid in JSON.
func asJSON(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSpace(b.String())
}
