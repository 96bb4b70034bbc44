package site

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// markdown keeps HTML, because tables contain <br>. This is safe, because the repository contains all pages.
var markdown = goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithRendererOptions(html.WithUnsafe()))

type page struct {
	name     string // relative to the checkout, such as docs/install.md
	source   []byte
	doc      ast.Node
	title    string
	sections []section
}

// section is a heading and the text up to the next heading.
type section struct {
	Level                 int
	Anchor, Heading, Text string
}

// patterns match the pages of the site.
var patterns = []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/*/*.md"}

func read(root string) (map[string]*page, error) {
	pages := map[string]*page{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				return nil, err
			}
			pages[name] = parse(name, source)
		}
	}
	return pages, nil
}

func parse(name string, source []byte) *page {
	p := &page{name: name, source: source, doc: markdown.Parser().Parse(text.NewReader(source)), title: name}
	used := map[string]int{}
	for node := p.doc.FirstChild(); node != nil; {
		next := node.NextSibling()
		switch n := node.(type) {
		case *ast.HTMLBlock: // comments that tests of the pages read
			p.doc.RemoveChild(p.doc, n)
		case *ast.Heading:
			s := section{Level: n.Level, Heading: plain(n, source)}
			s.Anchor = anchor(s.Heading, used)
			n.SetAttributeString("id", []byte(s.Anchor))
			if n.Level == 1 {
				p.title = s.Heading
			}
			p.sections = append(p.sections, s)
		default:
			if len(p.sections) > 0 {
				p.sections[len(p.sections)-1].Text += plain(n, source) + " "
			}
		}
		node = next
	}
	return p
}

var noLetter = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// anchor returns the anchor that GitHub gives a heading.
func anchor(heading string, used map[string]int) string {
	name := strings.ReplaceAll(noLetter.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
	n := used[name]
	used[name]++
	if n > 0 {
		return name + "-" + strconv.Itoa(n)
	}
	return name
}

// plain returns a node's text, without markup.
func plain(node ast.Node, source []byte) string {
	var b bytes.Buffer
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch {
		case !entering && n.Type() == ast.TypeBlock:
			b.WriteByte(' ')
		case !entering:
		case n.Kind() == ast.KindText:
			t := n.(*ast.Text)
			b.Write(t.Segment.Value(source))
			if t.SoftLineBreak() {
				b.WriteByte(' ')
			}
		case n.Kind() == ast.KindCodeBlock, n.Kind() == ast.KindFencedCodeBlock:
			b.Write(n.Lines().Value(source))
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}

// output returns the path of a page's HTML file in the site.
func output(name string) string {
	if path.Base(name) == "README.md" {
		return path.Join(path.Dir(name), "index.html")
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}
