package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// input is the unparsed value of a setting from a flag or a file.
type input struct {
	place
	words []string // exactly one, unless the setting is a list
	items []place  // the line of each word, for a list in a file
	// mistyped is true for a value of the wrong type. The reader has already reported it.
	mistyped bool
}

type place struct {
	origin string // "--flag", "file:line" or fromDefault
	field  string // path in the file; empty for a flag
	line   int    // line in the file; 0 for a flag
}

const fromDefault = "default"

// String returns the prefix of a message about the value.
func (p place) String() string {
	if p.field == "" {
		return p.origin
	}
	return p.origin + ": " + p.field
}

func (in input) word(i int) place {
	if i < len(in.items) {
		return in.items[i]
	}
	return in.place
}

// message is a warning or an error. Messages about a file are sorted by line.
type message struct {
	line int
	text string
}

// fields maps the known fields of a format, which are the leaves of the tree, to their kinds.
type fields map[string]kind

func ourFields() fields {
	f := fields{"apiVersion": kindText, "kind": kindText}
	for _, row := range table {
		f[row.path] = row.kind()
	}
	return f
}

func kubeProxyFields() fields {
	f := fields{"apiVersion": kindText, "kind": kindText}
	for _, row := range table {
		if row.kubeProxy != otherField {
			f[row.path] = row.kind()
		}
	}
	for _, t := range translations {
		f[t.field] = t.kind
	}
	for _, i := range inapplicables {
		f[i.field] = kindUnused
	}
	delete(f, "") // settings that have only a flag
	return f
}

// below returns the names of the fields in a mapping, or none if the path is not a mapping.
func (f fields) below(path string) []string {
	names := map[string]bool{}
	for leaf := range f {
		if rest, ok := strings.CutPrefix("."+leaf, strings.TrimSuffix("."+path, ".")+"."); ok {
			first, _, _ := strings.Cut(rest, ".")
			names[first] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

type reader struct {
	*document
	fields           fields
	inputs           map[string]input
	warnings, errors []message
}

func read(d *document) *reader {
	r := &reader{document: d, fields: ourFields(), inputs: map[string]input{}}
	if d.format == kubeProxyFormat {
		r.fields = kubeProxyFields()
	}
	r.mapping(d.root, "")
	return r
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.errors = append(r.errors, r.message(n, format, args...))
}

func (r *reader) warn(n *yaml.Node, format string, args ...any) {
	r.warnings = append(r.warnings, r.message(n, format, args...))
}

func (r *reader) message(n *yaml.Node, format string, args ...any) message {
	return message{r.line(n), r.position(n) + ": " + fmt.Sprintf(format, args...)}
}

// mapping collects the fields of a mapping. The depth of the known fields bounds the recursion, even with cyclic aliases.
func (r *reader) mapping(n *yaml.Node, path string) {
	seen := map[string]bool{}
	for key, value := range entries(n) {
		name := strings.TrimPrefix(path+"."+key.Value, ".")
		kind, leaf := r.fields[name]
		switch {
		case seen[name]:
			r.fail(key, "%s is set twice; remove one of them", name)
		case leaf && isNull(value): // not set
		case strings.Contains(key.Value, "."), !leaf && len(r.fields.below(name)) == 0:
			r.unknown(key, name, path)
		case leaf:
			r.inputs[name] = r.input(name, kind, value)
		case value.Kind == yaml.MappingNode:
			r.mapping(value, name)
		case !isNull(value):
			r.fail(value, "%s %s: must be a mapping of fields", name, describe(value))
		}
		seen[name] = true
	}
}

// unknown reports an unknown field. In a KubeProxyConfiguration, an unknown field is only a warning, as in kube-proxy itself, because the file may be
// for another version.
func (r *reader) unknown(key *yaml.Node, name, path string) {
	if r.format == kubeProxyFormat {
		r.warn(key, "%q: unknown field; ignored", name)
		return
	}
	r.fail(key, "%q: unknown field; use one of %s", name, strings.Join(r.fields.below(path), ", "))
}

// unused warns about each value below a kube-proxy field that has no effect. It does not follow aliases, which may be cyclic.
func (r *reader) unused(name string, n *yaml.Node) {
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			r.unused(name, child)
		case n.Kind == yaml.MappingNode && i%2 == 1:
			r.unused(name+"."+n.Content[i-1].Value, child)
		}
	}
	i := slices.IndexFunc(inapplicables, func(i inapplicable) bool { return i.field == name || strings.HasPrefix(name, i.field+".") })
	if n.Kind == yaml.ScalarNode && !isNull(n) && inapplicables[i].needsWarning(n.Value) {
		r.warn(n, "%s %s has no effect: %s", name, quote(kindText, n.Value), inapplicables[i].why)
	}
}

func (r *reader) input(path string, kind kind, node *yaml.Node) input {
	in := input{place: r.place(node, path)}
	switch {
	case kind == kindUnused:
		r.unused(path, node)
		in.words = []string{node.Value}
	case kind == kindList && node.Kind == yaml.SequenceNode:
		for i, item := range node.Content {
			r.scalar(&in, fmt.Sprintf("%s[%d]", path, i), kindText, resolve(item))
		}
	case kind == kindPairs && node.Kind == yaml.MappingNode:
		for key, value := range entries(node) {
			r.scalar(&in, path+"."+key.Value, kindBool, value)
			in.words[len(in.words)-1] = key.Value + "=" + in.words[len(in.words)-1]
		}
	case kind == kindPairs:
		r.fail(node, "%s %s: must be a mapping of names to true or false", path, describe(node))
		in.mistyped = true
	case kind == kindList: // kube-proxy also accepts a comma-separated string
		r.scalar(&in, path, kindText, node)
		in.words, in.items = splitList(strings.Join(in.words, ",")), nil
	default:
		r.scalar(&in, path, kind, node)
	}
	return in
}

// types maps each kind of value to the YAML types that a file may use for it.
var types = map[kind]struct {
	tags []string
	rule string
}{
	kindText:     {[]string{"!!str"}, "must be a string; put it in quotes"},
	kindBool:     {[]string{"!!bool"}, "must be true or false"},
	kindSwitch:   {[]string{"!!bool", "!!str"}, onOffAutoRule},
	kindNumber:   {[]string{"!!int", "!!float"}, "must be a number without quotes"},
	kindDuration: {[]string{"!!str", "!!int"}, "must be a duration such as 30s"},
}

func (r *reader) scalar(in *input, path string, kind kind, n *yaml.Node) {
	if t := types[kind]; n.Kind != yaml.ScalarNode || !slices.Contains(t.tags, n.ShortTag()) {
		r.fail(n, "%s %s: %s", path, describe(n), t.rule)
		in.mistyped = true
	}
	in.words = append(in.words, n.Value)
	in.items = append(in.items, r.place(n, path))
}

// splitList splits words separated by commas and drops empty ones.
func splitList(text string) []string {
	words := []string{}
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}
