package site

import (
	"bytes"
	_ "embed" // the files below
	"encoding/json"
	"errors"
	"html/template"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const icon = "docs/images/icon.svg"

var (
	//go:embed layout.html
	layoutText string
	//go:embed style.css
	style []byte
	//go:embed site.js
	script []byte

	layout = template.Must(template.New("page").Parse(layoutText))
)

// shown contains the data for the layout template.
type shown struct {
	Title, Root, Here string
	Areas             []area
	Area              area
	Sections          []section
	Body              template.HTML
}

// Link returns the path from this page to an entry of the navigation.
func (s shown) Link(e entry) string { return s.Root + output(e.page) }

// found is an entry of the search index. Its short JSON names keep the index small.
type found struct {
	Link    string `json:"l"`
	Page    string `json:"p"`
	Heading string `json:"h"`
	Text    string `json:"t"`
}

// Build writes the website of the checkout at root to the directory out. Its error lists all broken links and all pages missing from the index. Build
// writes all pages despite such errors.
func Build(root, out string) error {
	pages, err := read(root)
	if err != nil {
		return err
	}
	areas := navigation(pages)
	mistakes := unlisted(pages, areas)
	var search []found
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		p := pages[name]
		for _, s := range p.sections {
			search = append(search, found{Link: output(name) + "#" + s.Anchor, Page: p.title, Heading: s.Heading, Text: s.Text})
		}
		pictures, wrong := resolve(root, pages, p)
		mistakes = append(mistakes, wrong...)
		for _, picture := range append(pictures, icon) {
			content, err := os.ReadFile(filepath.Join(root, picture))
			mistakes = append(mistakes, err, write(out, picture, content))
		}
		text, err := render(p, areas)
		mistakes = append(mistakes, err, write(out, output(name), text))
	}
	content, err := json.Marshal(search)
	return errors.Join(append(mistakes, err, write(out, "search.js", slices.Concat([]byte("found("), content, []byte(")\n"))),
		write(out, "style.css", style), write(out, "site.js", script))...)
}

func render(p *page, areas []area) ([]byte, error) {
	var body, text bytes.Buffer
	if err := markdown.Renderer().Render(&body, p.source, p.doc); err != nil {
		return nil, err
	}
	here := output(p.name)
	up := strings.Repeat("../", strings.Count(here, "/"))
	contents := slices.DeleteFunc(slices.Clone(p.sections), func(s section) bool { return s.Level != 2 })
	err := layout.Execute(&text, shown{
		Title: p.title, Root: up, Here: here, Sections: contents, Body: template.HTML(body.String()),
		Areas: areas, Area: areas[max(0, areaOf(areas, p.name))],
	})
	return text.Bytes(), err
}

func write(out, name string, content []byte) error {
	file := filepath.Join(out, path.Clean(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}
