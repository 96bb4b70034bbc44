package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Loaded is a valid configuration.
type Loaded struct {
	Settings
	// Warnings name values that have no effect.
	Warnings []string
	origins  map[string]string // by path, for settings that a file or flag sets
	content  []byte            // of the file
}

// Given is a setting whose value comes from a file or flag.
type Given struct{ Path, Value, Origin string }

// Given returns the settings that a file or flag sets, with their values, in the order of the table.
func (l *Loaded) Given() []Given {
	var all []Given
	for _, row := range table {
		if origin, ok := l.origins[row.path]; ok {
			all = append(all, Given{row.path, strings.Join(row.value(&l.Settings).words(), ","), origin})
		}
	}
	return all
}

// With returns the defaults with the given values applied. It ignores settings and values that this version does not
// support.
func With(values map[string]string) *Settings {
	l := newLoading()
	for _, row := range table {
		if value, set := values[row.path]; set {
			row.value(&l.settings).set(row.words(value))
		}
	}
	return &l.settings
}

// Load reads the file, if any, and overrides its settings with the flags. The error contains one line per mistake.
func (f *Flags) Load() (*Loaded, error) {
	if f.File == "" {
		return f.load(nil)
	}
	content, err := readFile(f.File)
	if err != nil {
		return nil, err
	}
	return f.load(content)
}

// maxFile is the size limit of a configuration file. ConfigMaps have the same limit.
const maxFile = 1 << 20

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(content) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes, so it cannot be a configuration", name, maxFile)
	}
	return content, nil
}

func (f *Flags) load(content []byte) (*Loaded, error) {
	l := newLoading()
	l.hasFile = f.File != ""
	if l.hasFile {
		l.applyFile(f.File, content)
	}
	l.applyFlags(f.inputs)
	l.checkConflicts()
	if len(l.errors) > 0 {
		return nil, errors.New(strings.Join(texts(l.errors), "\n"))
	}
	loaded := &Loaded{Settings: l.settings, Warnings: texts(l.warnings), origins: map[string]string{}, content: content}
	for path, in := range l.inputs {
		loaded.origins[path] = in.origin
	}
	return loaded, nil
}

func texts(messages []message) []string {
	var texts []string
	for _, m := range messages {
		texts = append(texts, m.text)
	}
	return texts
}

type loading struct {
	settings         Settings
	hasFile          bool             // if true, messages name defaults by their field
	inputs           map[string]input // by path; the last input that sets the setting
	invalid          map[string]bool  // paths of settings with an invalid value
	warnings, errors []message
}

func newLoading() *loading {
	l := &loading{inputs: map[string]input{}, invalid: map[string]bool{}}
	for _, row := range table {
		if invalid := row.value(&l.settings).set(row.words(row.byDefault)); invalid != nil {
			panic(fmt.Sprintf("default %q of %s %s", row.byDefault, row.path, invalid[0].rule))
		}
	}
	return l
}

func (l *loading) applyFile(name string, content []byte) {
	d, skipped, err := findDocument(name, content)
	if err != nil {
		l.errors = append(l.errors, message{text: err.Error()})
		return
	}
	r := read(d)
	inputs := l.collect(r.inputs, func(field, _ string) string { return field })
	if d.format == kubeProxyFormat {
		dropUnset(inputs)
		completeServers(inputs, r.inputs["bindAddress"])
	}
	l.apply(inputs)
	l.warnings = slices.Concat(l.warnings, skipped, r.warnings)
	l.errors = append(l.errors, r.errors...)
	byLine := func(a, b message) int { return cmp.Compare(a.line, b.line) }
	slices.SortStableFunc(l.warnings, byLine)
	slices.SortStableFunc(l.errors, byLine)
}

func (l *loading) applyFlags(flags map[string]input) {
	inputs := l.collect(flags, func(_, flag string) string { return flag })
	for _, i := range inapplicables {
		if in, ok := flags[i.flag]; ok {
			l.warn(in, kindText, " has no effect: "+i.why)
		}
	}
	l.apply(inputs)
}

// collect returns the inputs from a file or from flags, by the path of the kube-ipvs setting. An input for the kube-ipvs setting itself overrides a
// translated input.
func (l *loading) collect(source map[string]input, name func(field, flag string) string) map[string]input {
	inputs := map[string]input{}
	for _, t := range translations {
		if in, ok := source[name(t.field, t.flag)]; ok {
			l.translate(t, in, inputs)
		}
	}
	for _, row := range table {
		if in, ok := source[name(row.path, row.flag)]; ok {
			inputs[row.path] = in
		}
	}
	return inputs
}

// translate converts a kube-proxy input to a kube-ipvs input, and adds it to inputs.
func (l *loading) translate(t translation, in input, inputs map[string]input) {
	if in.mistyped {
		l.invalid[t.to] = true
		return
	}
	ours, warnings, invalid := t.translate(in.words)
	for _, w := range warnings {
		l.warn(in, t.kind, ": "+w)
	}
	l.fail(in, t.kind, invalid)
	if ours != nil && invalid == nil {
		inputs[t.to] = input{place: in.place, words: ours}
	}
}

func (l *loading) apply(inputs map[string]input) {
	for _, row := range table {
		in, ok := inputs[row.path]
		if !ok {
			continue
		}
		var invalid []invalidWord
		if !in.mistyped {
			invalid = row.value(&l.settings).set(in.words)
			l.inputs[row.path] = in
		}
		l.fail(in, row.kind(), invalid)
		l.invalid[row.path] = in.mistyped || invalid != nil
	}
}

func (l *loading) fail(in input, k kind, invalid []invalidWord) {
	for _, w := range invalid {
		at := in.word(w.index)
		l.errors = append(l.errors, message{at.line, fmt.Sprintf("%s %s: %s", at, quote(k, in.words[w.index]), w.rule)})
	}
}

func (l *loading) warn(in input, k kind, text string) {
	l.warnings = append(l.warnings, message{in.line, in.place.String() + " " + quote(k, in.words...) + text})
}
