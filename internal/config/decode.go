package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// given is a setting as somebody gave it, not yet parsed.
type given struct {
	flag  string   // on the command line; empty if it was not there
	file  string   // otherwise
	line  int      // 0 for a default
	field string   // its name in the file
	words []string // one, or any number for a list
	lines []int    // of each word of a list in a file
}

// origin says who gave the setting: a flag, or a line of a file.
func (g given) origin() string {
	switch {
	case g.flag != "":
		return "--" + g.flag
	case g.line == 0:
		return "default"
	}
	return fmt.Sprintf("%s:%d", g.file, g.line)
}

// at names the place of a word, as an error begins.
func (g given) at(word int) string {
	switch {
	case g.flag != "":
		return g.origin()
	case word < len(g.lines):
		return fmt.Sprintf("%s:%d: %s[%d]", g.file, g.lines[word], g.field, word)
	}
	return g.origin() + ": " + g.field
}

// lineOf is the line of a word.
func (g given) lineOf(word int) int {
	if word < len(g.lines) {
		return g.lines[word]
	}
	return g.line
}

// remark is a line of what is to be told about a file.
type remark struct {
	line int
	text string
}

// fields are all fields that a file of some format may have: the leaves with their kinds.
type fields map[string]kind

// inner says whether a path has leaves below it.
func (f fields) inner(path string) bool {
	for leaf := range f {
		if strings.HasPrefix(leaf, path+".") {
			return true
		}
	}
	return false
}

const kindAnything kind = "anything" // of a field that is not used

func ourFields() fields {
	f := fields{"apiVersion": kindText, "kind": kindText}
	for _, row := range table {
		f[row.path] = row.kind()
	}
	return f
}

func theirFields() fields {
	f := fields{"apiVersion": kindText, "kind": kindText}
	for _, row := range table {
		if row.theirs.path != "" {
			f[row.theirs.path] = row.kind()
		}
	}
	for _, t := range translations {
		if t.field != "" {
			f[t.field] = t.kind
		}
	}
	for _, i := range inapplicables {
		if i.field != "" {
			f[i.field] = kindAnything
		}
	}
	return f
}

func (s *setting) kind() kind { return s.value(&Settings{}).kind }

// reader collects what a document says, and everything that is wrong with it.
type reader struct {
	*document
	fields   fields
	leaves   map[string]*yaml.Node
	warnings []remark
	wrong    []remark
}

func read(d *document) *reader {
	r := &reader{document: d, fields: ourFields(), leaves: map[string]*yaml.Node{}}
	if d.theirs {
		r.fields = theirFields()
	}
	r.mapping(d.root, "")
	return r
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.wrong = append(r.wrong, r.remark(n, format, args...))
}

func (r *reader) warn(n *yaml.Node, format string, args ...any) {
	r.warnings = append(r.warnings, r.remark(n, format, args...))
}

func (r *reader) remark(n *yaml.Node, format string, args ...any) remark {
	return remark{r.line(n), r.place(n) + ": " + fmt.Sprintf(format, args...)}
}

// mapping walks the fields of a mapping. The depth of the tree of known fields bounds it, whatever aliases there are.
func (r *reader) mapping(n *yaml.Node, path string) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
		name := strings.TrimPrefix(path+"."+key.Value, ".")
		kind, leaf := r.fields[name]
		switch {
		case seen[name]:
			r.fail(key, "%s is given twice: want it once", name)
		case leaf && isNull(value): // not set
		case strings.Contains(key.Value, "."):
			r.unknown(key, path)
		case leaf && kind == kindAnything:
			r.unused(name, value)
			r.leaves[name] = value
		case leaf:
			r.leaves[name] = value
		case !r.fields.inner(name):
			r.unknown(key, path)
		case value.Kind == yaml.MappingNode:
			r.mapping(value, name)
		case !isNull(value):
			r.fail(value, "%s %s: want fields in it", name, describe(value))
		}
		seen[name] = true
	}
}

// unknown fields are errors in our format. kube-proxy warns of them and starts, and a file may come from another version of it.
func (r *reader) unknown(key *yaml.Node, path string) {
	name := strings.TrimPrefix(path+"."+key.Value, ".")
	if r.theirs {
		r.warn(key, "%q: this field is not known and does nothing", name)
		return
	}
	r.fail(key, "%q: there is no such field: want one of %s", name, strings.Join(r.below(path), ", "))
}

// below lists the fields that a mapping may have.
func (r *reader) below(path string) []string {
	var names []string
	for leaf := range r.fields {
		if rest, ok := strings.CutPrefix("."+leaf, strings.TrimSuffix("."+path, ".")+"."); ok {
			first, _, _ := strings.Cut(rest, ".")
			names = append(names, first)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unused warns of every value in a field of kube-proxy's that does nothing here.
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
		r.warn(n, "%s %s does nothing here: %s", name, quote(kindText, n.Value), inapplicables[i].why)
	}
}

// given returns what a field says; false if it says nothing, or something of the wrong type.
func (r *reader) given(path string) (given, bool) {
	node, ok := r.leaves[path]
	if !ok {
		return given{}, false
	}
	g := given{file: r.file, line: r.line(node), field: path}
	kind := r.fields[path]
	switch {
	case kind == kindList && node.Kind == yaml.SequenceNode:
		ok = r.list(&g, node)
	case kind == kindPairs && node.Kind == yaml.MappingNode:
		ok = r.pairs(&g, node)
	case kind == kindPairs:
		r.fail(node, "%s %s: want names with true or false", path, describe(node))
		ok = false
	case kind == kindList:
		ok = r.scalar(&g, path, kindText, node)
		g.words = splitList(strings.Join(g.words, ","))
		g.lines = nil
	default:
		ok = r.scalar(&g, path, kind, node)
		g.lines = nil
	}
	return g, ok
}

func (r *reader) list(g *given, n *yaml.Node) bool {
	fine := true
	for i, item := range n.Content {
		fine = r.scalar(g, fmt.Sprintf("%s[%d]", g.field, i), kindText, resolve(item)) && fine
	}
	return fine
}

func (r *reader) pairs(g *given, n *yaml.Node) bool {
	fine := true
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		var value given
		fine = r.scalar(&value, g.field+"."+key, kindTruth, resolve(n.Content[i+1])) && fine
		g.words = append(g.words, key+"="+strings.Join(value.words, ""))
		g.lines = append(g.lines, value.lines...)
	}
	return fine
}

// tags that YAML gives to what is written for a kind of value, and what to ask for otherwise.
var tags = map[kind]struct {
	valid []string
	want  string
}{
	kindText:     {[]string{"!!str"}, "text; put it in quotes"},
	kindTruth:    {[]string{"!!bool"}, "true or false"},
	kindNumber:   {[]string{"!!int", "!!float"}, "a number, without quotes"},
	kindDuration: {[]string{"!!str", "!!int"}, "a duration such as 30s"},
}

// scalar adds the word of a scalar to what is given.
func (r *reader) scalar(g *given, path string, kind kind, n *yaml.Node) bool {
	tag := tags[kind]
	if n.Kind != yaml.ScalarNode || !slices.Contains(tag.valid, n.ShortTag()) {
		r.fail(n, "%s %s: want %s", path, describe(n), tag.want)
		return false
	}
	g.words = append(g.words, n.Value)
	g.lines = append(g.lines, r.line(n))
	return true
}

// splitList splits words separated by commas; empty ones are no words.
func splitList(text string) []string {
	words := []string{}
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}
