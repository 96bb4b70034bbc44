package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML prints every setting in our format, with where it came from beside it. It is a file that says the same.
func (l *Loaded) YAML() ([]byte, error) {
	return encodeYAML(l.tree(all, func(row setting) string { return l.origin(row.path) }))
}

// ChangedYAML prints the settings that differ from their defaults, in our format.
func (l *Loaded) ChangedYAML() ([]byte, error) {
	return encodeYAML(l.tree(l.differs, func(setting) string { return "" }))
}

// JSON prints every setting in our format, and for each its origin.
func (l *Loaded) JSON() ([]byte, error) {
	settings, err := l.settingsMap()
	if err != nil {
		return nil, err
	}
	origins := map[string]string{}
	for _, row := range table {
		origins[row.path] = l.origin(row.path)
	}
	return encodeJSON(struct {
		Configuration map[string]any    `json:"configuration"`
		Origins       map[string]string `json:"origins"`
	}{settings, origins})
}

// SettingsJSON prints every setting in our format.
func (l *Loaded) SettingsJSON() ([]byte, error) {
	settings, err := l.settingsMap()
	if err != nil {
		return nil, err
	}
	return encodeJSON(settings)
}

func (l *Loaded) settingsMap() (map[string]any, error) {
	return asMap(l.tree(all, func(setting) string { return "" }))
}

// ChangedJSON is ChangedYAML in JSON.
func (l *Loaded) ChangedJSON() ([]byte, error) {
	settings, err := asMap(l.tree(l.differs, func(setting) string { return "" }))
	if err != nil {
		return nil, err
	}
	return encodeJSON(settings)
}

// origin says who gave a setting: the default, a line of the file, or a flag.
func (l *Loaded) origin(path string) string {
	if origin, ok := l.origins[path]; ok {
		return origin
	}
	return "default"
}

func all(setting) bool { return true }

func (l *Loaded) differs(row setting) bool {
	usual := newLoading().settings
	return !slices.Equal(row.value(&l.Settings).words(), row.value(&usual).words())
}

// tree builds a file of our format from the settings that are asked for, with a comment on each.
func (l *Loaded) tree(wanted func(setting) bool, comment func(setting) string) *yaml.Node {
	root := &yaml.Node{Kind: yaml.MappingNode}
	add(root, "apiVersion", scalarNode(kindText, ourVersion))
	add(root, "kind", scalarNode(kindText, ourKind))
	for _, row := range table {
		if !wanted(row) {
			continue
		}
		parent, name := root, row.path
		for outer, rest, more := strings.Cut(name, "."); more; outer, rest, more = strings.Cut(name, ".") {
			parent, name = inner(parent, outer), rest
		}
		v := row.value(&l.Settings)
		node := valueNode(v.kind, v.words())
		node.LineComment = comment(row)
		add(parent, name, node)
	}
	return root
}

func add(mapping *yaml.Node, name string, value *yaml.Node) {
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, value)
}

// inner finds or makes a mapping in a mapping.
func inner(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; i < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return mapping.Content[i+1]
		}
	}
	node := &yaml.Node{Kind: yaml.MappingNode}
	add(mapping, name, node)
	return node
}

func valueNode(k kind, words []string) *yaml.Node {
	if !k.many() {
		return scalarNode(k, words[0])
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, word := range words {
		list.Content = append(list.Content, scalarNode(kindText, word))
	}
	return list
}

// scalarNode leaves it to the encoder to put text in quotes that would read as something else.
func scalarNode(k kind, word string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Value: word}
	if k == kindText || k == kindDuration {
		node.Tag = "!!str"
	}
	return node
}

func encodeYAML(root *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return b.Bytes(), nil
}

func asMap(root *yaml.Node) (map[string]any, error) {
	var m map[string]any
	if err := root.Decode(&m); err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return m, nil
}

func encodeJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return b.Bytes(), nil
}
