package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML prints every setting in kube-ipvs's format, with its origin in a comment. The result is a valid configuration file.
func (l *Loaded) YAML() ([]byte, error) { return encodeYAML(l.document(every, l.origin)) }

// ChangedYAML prints the settings that differ from their defaults, in kube-ipvs's format.
func (l *Loaded) ChangedYAML() ([]byte, error) { return encodeYAML(l.document(l.changed, noComment)) }

// SettingsJSON prints every setting in kube-ipvs's format.
func (l *Loaded) SettingsJSON() ([]byte, error) { return encodeJSON(l.document(every, noComment)) }

// ChangedJSON prints the settings that differ from their defaults, in kube-ipvs's format.
func (l *Loaded) ChangedJSON() ([]byte, error) { return encodeJSON(l.document(l.changed, noComment)) }

// JSON prints every setting in kube-ipvs's format, and the origin of each.
func (l *Loaded) JSON() ([]byte, error) {
	origins := &yaml.Node{Kind: yaml.MappingNode}
	for _, row := range table {
		add(origins, row.path, scalarNode(kindText, l.origin(row.path)))
	}
	both := &yaml.Node{Kind: yaml.MappingNode}
	add(both, "configuration", l.document(every, noComment))
	add(both, "origins", origins)
	return encodeJSON(both)
}

func (l *Loaded) origin(path string) string {
	if origin, ok := l.origins[path]; ok {
		return origin
	}
	return fromDefault
}

func every(setting) bool { return true }

func noComment(string) string { return "" }

func (l *Loaded) changed(row setting) bool {
	defaults := newLoading().settings
	return !slices.Equal(row.value(&l.Settings).words(), row.value(&defaults).words())
}

func (l *Loaded) document(selected func(setting) bool, comment func(path string) string) *yaml.Node {
	root := &yaml.Node{Kind: yaml.MappingNode}
	add(root, "apiVersion", scalarNode(kindText, ourFormat.version))
	add(root, "kind", scalarNode(kindText, ourFormat.kind))
	for _, row := range table {
		if !selected(row) {
			continue
		}
		parent, name := root, row.path
		if outer, inner, nested := strings.Cut(row.path, "."); nested {
			parent, name = child(root, outer), inner
		}
		v := row.value(&l.Settings)
		node := valueNode(v.kind, v.words())
		node.LineComment = comment(row.path)
		add(parent, name, node)
	}
	return root
}

func add(mapping *yaml.Node, name string, value *yaml.Node) {
	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, value)
}

// child returns a nested mapping, and adds it if it is missing.
func child(mapping *yaml.Node, name string) *yaml.Node {
	for key, value := range entries(mapping) {
		if key.Value == name {
			return value
		}
	}
	node := &yaml.Node{Kind: yaml.MappingNode}
	add(mapping, name, node)
	return node
}

func valueNode(k kind, words []string) *yaml.Node {
	if !k.isList() {
		return scalarNode(k, words[0])
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, word := range words {
		list.Content = append(list.Content, scalarNode(kindText, word))
	}
	return list
}

// scalarNode tags strings, so that the encoder quotes strings that would parse as another type.
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

func encodeJSON(root *yaml.Node) ([]byte, error) {
	var tree map[string]any
	if err := root.Decode(&tree); err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(tree); err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return b.Bytes(), nil
}
