package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The two formats of a file.
const (
	ourVersion   = "config.kube-ipvs.io/v1alpha1"
	ourKind      = "Configuration"
	theirVersion = "kubeproxy.config.k8s.io/v1alpha1"
	theirKind    = "KubeProxyConfiguration"
)

// document is the part of a file that holds the configuration.
type document struct {
	file   string
	before int // lines of the file before the text that root was parsed from
	theirs bool
	root   *yaml.Node
}

func (d *document) line(n *yaml.Node) int { return d.before + max(n.Line, 1) }

func (d *document) place(n *yaml.Node) string { return fmt.Sprintf("%s:%d", d.file, d.line(n)) }

// findDocument finds the one configuration in a file: a document of either format, among others, or inside a ConfigMap as
// kubeadm makes it. Others are the documents that were passed over.
func findDocument(file string, content []byte) (found *document, others []remark, err error) {
	all, err := documents(file, 0, content)
	if err != nil {
		return nil, nil, err
	}
	var candidates []*document
	for _, d := range all {
		version, kind := d.scalar("apiVersion"), d.scalar("kind")
		if version != "v1" || kind != "ConfigMap" {
			candidates = append(candidates, d)
			continue
		}
		inside, err := d.inside()
		if err != nil {
			return nil, nil, err
		}
		candidates = append(candidates, inside...)
	}
	for _, d := range candidates {
		switch is, err := d.recognise(); {
		case err != nil:
			return nil, nil, err
		case is && found != nil:
			return nil, nil, fmt.Errorf("%s: a second configuration; the first is at %s: want one", d.place(d.root), found.place(found.root))
		case is:
			found = d
		default:
			others = append(others, remark{d.line(d.root), fmt.Sprintf("%s: %s %s is no configuration of this program and is not read",
				d.place(d.root), d.scalar("apiVersion"), strconv.Quote(d.scalar("kind")))})
		}
	}
	if found == nil {
		return nil, nil, fmt.Errorf("%s: holds no configuration: want a document with apiVersion %s and kind %s, or %s and %s",
			file, ourVersion, ourKind, theirVersion, theirKind)
	}
	return found, others, nil
}

// documents parses all documents of a text that begins after some lines of a file. Empty ones are left out.
func documents(file string, before int, content []byte) ([]*document, error) {
	var all []*document
	for decoder := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, explainSyntax(file, before, err)
		}
		if len(node.Content) != 1 || isNull(node.Content[0]) {
			continue
		}
		d := &document{file: file, before: before, root: node.Content[0]}
		if d.root.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("%s: %s: want fields such as apiVersion, kind and ipvs", d.place(d.root), describe(d.root))
		}
		all = append(all, d)
	}
}

var syntaxLine = regexp.MustCompile(`^yaml: line (\d+): `)

// explainSyntax gives an error of the YAML parser the line in the file.
func explainSyntax(file string, before int, err error) error {
	text := err.Error()
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		if line, convErr := strconv.Atoi(m[1]); convErr == nil {
			return fmt.Errorf("%s:%d: neither YAML nor JSON: %s", file, before+line, text[len(m[0]):])
		}
	}
	return fmt.Errorf("%s: neither YAML nor JSON: %s", file, strings.TrimPrefix(text, "yaml: "))
}

// recognise says whether the document is a configuration. One of a version that is not known is an error.
func (d *document) recognise() (bool, error) {
	version, kind := d.scalar("apiVersion"), d.scalar("kind")
	group, _, _ := strings.Cut(version, "/")
	switch {
	case version == ourVersion && kind == ourKind:
		return true, nil
	case version == theirVersion && kind == theirKind:
		d.theirs = true
		return true, nil
	case version == "":
		return false, fmt.Errorf("%s: apiVersion \"\": want %s (with kind %s) or %s (with kind %s)",
			d.place(d.root), ourVersion, ourKind, theirVersion, theirKind)
	case strings.HasPrefix(ourVersion, group+"/"):
		return false, fmt.Errorf("%s: apiVersion %q, kind %q: want %s and %s", d.place(d.root), version, kind, ourVersion, ourKind)
	case strings.HasPrefix(theirVersion, group+"/"):
		return false, fmt.Errorf("%s: apiVersion %q, kind %q: want %s and %s", d.place(d.root), version, kind, theirVersion, theirKind)
	}
	return false, nil
}

// scalar returns a field of the document's top level; empty if there is none.
func (d *document) scalar(key string) string {
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if value := resolve(d.root.Content[i+1]); d.root.Content[i].Value == key && value.Kind == yaml.ScalarNode {
			return value.Value
		}
	}
	return ""
}

// inside returns the configurations in the data of a ConfigMap. What else is there (a kubeconfig) is somebody else's.
func (d *document) inside() ([]*document, error) {
	var found []*document
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		data := resolve(d.root.Content[i+1])
		if d.root.Content[i].Value != "data" || data.Kind != yaml.MappingNode {
			continue
		}
		for j := 0; j+1 < len(data.Content); j += 2 {
			more, err := d.within(data.Content[j].Value, resolve(data.Content[j+1]))
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
	}
	return found, nil
}

func (d *document) within(key string, text *yaml.Node) ([]*document, error) {
	isConfig := strings.Contains(text.Value, theirVersion) || strings.Contains(text.Value, ourVersion)
	switch {
	case text.Kind != yaml.ScalarNode || !isConfig:
		return nil, nil
	case text.Style == yaml.LiteralStyle: // begins on the line after the "|"
		return documents(d.file, d.before+text.Line, []byte(text.Value))
	}
	// In quotes its lines are not those of the file.
	return documents(fmt.Sprintf("%s: data[%s]", d.place(text), key), 0, []byte(text.Value))
}

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe shows a node in an error.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{...}"
	case yaml.SequenceNode:
		return "[...]"
	}
	return strconv.Quote(n.Value)
}
