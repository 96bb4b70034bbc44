package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

type format struct{ version, kind string }

var (
	ourFormat       = format{"config.kube-ipvs.io/v1alpha1", "Configuration"}
	kubeProxyFormat = format{"kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration"}
	formats         = []format{ourFormat, kubeProxyFormat}
)

func (f format) String() string { return "apiVersion " + f.version + " and kind " + f.kind }

type document struct {
	file   string
	before int // number of lines in the file that precede the text of root
	root   *yaml.Node
	format format
}

func (d *document) line(n *yaml.Node) int { return d.before + max(n.Line, 1) }

func (d *document) position(n *yaml.Node) string { return fmt.Sprintf("%s:%d", d.file, d.line(n)) }

func (d *document) place(n *yaml.Node, field string) place {
	return place{origin: d.position(n), field: field, line: d.line(n)}
}

// findDocument returns the only configuration in a file, and a warning for each other document. The configuration
// may be a separate document, or part of a ConfigMap, as kubeadm creates it.
func findDocument(file string, content []byte) (found *document, skipped []message, err error) {
	all, err := parseDocuments(file, 0, content)
	if err != nil {
		return nil, nil, err
	}
	var candidates []*document
	for _, d := range all {
		inside := []*document{d}
		if d.scalar("apiVersion") == "v1" && d.scalar("kind") == "ConfigMap" {
			if inside, err = d.configMapDocuments(); err != nil {
				return nil, nil, err
			}
		}
		candidates = append(candidates, inside...)
	}
	for _, d := range candidates {
		switch is, err := d.recognize(); {
		case err != nil:
			return nil, nil, err
		case is && found != nil:
			return nil, nil, fmt.Errorf("%s: a second configuration, after %s; remove one of them", d.position(d.root), found.position(found.root))
		case is:
			found = d
		default:
			skipped = append(skipped, message{d.line(d.root), fmt.Sprintf("%s: %s %q is not a configuration of kube-ipvs; ignored",
				d.position(d.root), d.scalar("apiVersion"), d.scalar("kind"))})
		}
	}
	if found == nil {
		return nil, nil, fmt.Errorf("%s: no configuration found; add a document with %s, or with %s", file, ourFormat, kubeProxyFormat)
	}
	return found, skipped, nil
}

// parseDocuments parses the YAML documents in content and drops empty ones. before is the number of lines that
// precede content in the file.
func parseDocuments(file string, before int, content []byte) ([]*document, error) {
	var all []*document
	for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, syntaxError(file, before, err)
		}
		if len(node.Content) != 1 || isNull(node.Content[0]) {
			continue
		}
		d := &document{file: file, before: before, root: node.Content[0]}
		if d.root.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("%s: %s: must be a mapping of fields such as apiVersion, kind and ipvs", d.position(d.root), describe(d.root))
		}
		all = append(all, d)
	}
}

var syntaxLine = regexp.MustCompile(`^yaml: line (\d+): `)

func syntaxError(file string, before int, err error) error {
	text := err.Error()
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		if line, convErr := strconv.Atoi(m[1]); convErr == nil {
			return fmt.Errorf("%s:%d: invalid YAML or JSON: %s", file, before+line, text[len(m[0]):])
		}
	}
	return fmt.Errorf("%s: invalid YAML or JSON: %s", file, strings.TrimPrefix(text, "yaml: "))
}

// recognize reports whether the document is a configuration, and sets its format. A configuration with an unknown version or
// kind is an error.
func (d *document) recognize() (bool, error) {
	version, kind := d.scalar("apiVersion"), d.scalar("kind")
	if version == "" {
		return false, fmt.Errorf("%s: no apiVersion; use %s, or %s", d.position(d.root), ourFormat, kubeProxyFormat)
	}
	group, _, _ := strings.Cut(version, "/")
	for _, f := range formats {
		if f == (format{version, kind}) {
			d.format = f
			return true, nil
		}
		if strings.HasPrefix(f.version, group+"/") {
			return false, fmt.Errorf("%s: apiVersion %q, kind %q: must be %s and %s", d.position(d.root), version, kind, f.version, f.kind)
		}
	}
	return false, nil
}

func (d *document) scalar(name string) string {
	for key, value := range entries(d.root) {
		if key.Value == name && value.Kind == yaml.ScalarNode {
			return value.Value
		}
	}
	return ""
}

// configMapDocuments returns the configurations in the data of a ConfigMap. Other keys, such as a kubeconfig, are ignored.
func (d *document) configMapDocuments() ([]*document, error) {
	var found []*document
	for field, data := range entries(d.root) {
		if field.Value != "data" {
			continue
		}
		for key, text := range entries(data) {
			isConfig := strings.Contains(text.Value, ourFormat.version) || strings.Contains(text.Value, kubeProxyFormat.version)
			if text.Kind != yaml.ScalarNode || !isConfig {
				continue
			}
			// The line numbers in a quoted string do not match the file. A block begins on the line after the "|".
			file, before := fmt.Sprintf("%s: data[%s]", d.position(text), key.Value), 0
			if text.Style == yaml.LiteralStyle {
				file, before = d.file, d.before+text.Line
			}
			documents, err := parseDocuments(file, before, []byte(text.Value))
			if err != nil {
				return nil, err
			}
			found = append(found, documents...)
		}
	}
	return found, nil
}

// entries yields the keys and values of a mapping, or nothing for any other node. It follows aliases.
func entries(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], resolve(n.Content[i+1])) {
				return
			}
		}
	}
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{...}"
	case yaml.SequenceNode:
		return "[...]"
	}
	return strconv.Quote(n.Value)
}
