package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Loaded is a configuration that has been read and found right.
type Loaded struct {
	Settings
	// Warnings name what was given and does nothing.
	Warnings []string
	origins  map[string]string // by path; a setting that nobody gave has none
	content  []byte            // of the file
}

// Load reads the file, if one is named, and lays the flags over it. The error holds everything that is wrong, a line for each.
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

// maxFile is more than any configuration has; a ConfigMap ends here, too.
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
		return nil, fmt.Errorf("%s: more than %d bytes: want a configuration", name, maxFile)
	}
	return content, nil
}

// load is Load with the file's content.
func (f *Flags) load(content []byte) (*Loaded, error) {
	l := newLoading()
	l.inFile = f.File != ""
	if l.inFile {
		l.takeFile(f.File, content)
	}
	l.takeFlags(f.given)
	l.agree()
	if len(l.wrong) > 0 {
		return nil, asError(l.wrong)
	}
	loaded := &Loaded{Settings: l.settings, Warnings: texts(l.warnings), origins: map[string]string{}, content: content}
	for path, g := range l.given {
		loaded.origins[path] = g.origin()
	}
	return loaded, nil
}

func texts(remarks []remark) []string {
	var texts []string
	for _, r := range remarks {
		texts = append(texts, r.text)
	}
	return texts
}

func asError(remarks []remark) error {
	var errs []error
	for _, text := range texts(remarks) {
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}

// loading is a configuration in the making.
type loading struct {
	settings Settings
	inFile   bool             // a file was named: settings that nobody gave are called as in a file
	given    map[string]given // by path
	bad      map[string]bool  // settings that were given wrongly, by path
	warnings []remark
	wrong    []remark
}

func newLoading() *loading {
	l := &loading{given: map[string]given{}, bad: map[string]bool{}}
	for _, row := range table {
		if wrong := row.value(&l.settings).set(row.words(row.usual)); wrong != nil {
			panic(fmt.Sprintf("the default %q of %s is wrong: want %s", row.usual, row.path, wrong[0].want))
		}
	}
	return l
}

// words splits a text as on a command line.
func (s *setting) words(text string) []string {
	if s.kind().many() {
		return splitList(text)
	}
	return []string{text}
}

func (l *loading) takeFile(name string, content []byte) {
	d, others, err := findDocument(name, content)
	if err != nil {
		l.wrong = append(l.wrong, remark{text: err.Error()})
		return
	}
	r := read(d)
	source := map[string]given{}
	if d.theirs {
		l.takeTheirs(r, source)
	} else {
		for _, row := range table {
			if g, ok := l.field(r, row.path, row.path); ok {
				source[row.path] = g
			}
		}
	}
	l.takeAll(source)
	l.warnings = append(append(l.warnings, others...), r.warnings...)
	l.wrong = append(l.wrong, r.wrong...)
	byLine := func(a, b remark) int { return cmp.Compare(a.line, b.line) }
	slices.SortStableFunc(l.warnings, byLine)
	slices.SortStableFunc(l.wrong, byLine)
}

// field returns what a field says. A setting whose field is of the wrong type is not looked at any more.
func (l *loading) field(r *reader, field, path string) (given, bool) {
	g, ok := r.given(field)
	l.bad[path] = !ok && r.leaves[field] != nil
	return g, ok
}

// takeTheirs collects the settings of kube-proxy's configuration under our paths.
func (l *loading) takeTheirs(r *reader, source map[string]given) {
	for _, t := range translations {
		if g, ok := l.field(r, t.field, t.to); ok {
			l.translate(t, g, source)
		}
	}
	for _, row := range table {
		if row.theirs.path == "" {
			continue
		}
		g, ok := l.field(r, row.theirs.path, row.path)
		if ok && !(row.theirs.blank && isZero(row.kind(), g.words)) {
			source[row.path] = g
		}
	}
	var bind given
	if node := r.leaves["bindAddress"]; node != nil {
		bind = given{file: r.file, line: r.line(node), field: "bindAddress", words: []string{node.Value}}
	}
	completeServers(source, bind)
}

func (l *loading) takeFlags(flags map[string]given) {
	source := map[string]given{}
	for _, t := range translations {
		if g, ok := flags[t.flag]; ok {
			l.translate(t, g, source)
		}
	}
	for _, i := range inapplicables {
		if g, ok := flags[i.flag]; ok && i.flag != "" {
			l.warn(g, "%s %s does nothing here: %s", g.at(0), quote(kindText, g.words...), i.why)
		}
	}
	for _, row := range table {
		if g, ok := flags[row.flag]; ok {
			source[row.path] = g
		}
	}
	l.takeAll(source)
}

// translate puts what kube-proxy says in other words among the settings.
func (l *loading) translate(t translation, g given, source map[string]given) {
	ours, warnings, bad := t.translate(g.words)
	for _, w := range warnings {
		l.warn(g, "%s %s: %s", g.at(len(g.words)), quote(t.kind, g.words...), w)
	}
	l.fail(g, t.kind, bad)
	if ours != nil && bad == nil {
		g.words, g.lines = ours, nil
		source[t.to] = g
	}
}

func (l *loading) takeAll(source map[string]given) {
	for _, row := range table {
		g, ok := source[row.path]
		if !ok {
			continue
		}
		bad := row.value(&l.settings).set(g.words)
		l.fail(g, row.kind(), bad)
		l.given[row.path] = g
		l.bad[row.path] = bad != nil
	}
}

func (l *loading) fail(g given, k kind, bad []wrong) {
	for _, w := range bad {
		l.wrong = append(l.wrong, remark{g.lineOf(w.word), fmt.Sprintf("%s %s: want %s", g.at(w.word), quote(k, g.words[w.word]), w.want)})
	}
}

func (l *loading) warn(g given, format string, args ...any) {
	l.warnings = append(l.warnings, remark{g.line, fmt.Sprintf(format, args...)})
}
