package site

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// index is the page that lists all others. Its level 2 headings separate pages for operators from pages for developers. Its level 3 headings group
// these pages.
const index = "docs/README.md"

type area struct {
	Name, Anchor string
	Groups       []group
}

type group struct {
	Name    string
	Entries []entry
}

type entry struct {
	Label, page string
}

func navigation(pages map[string]*page) (areas []area) {
	p := pages[index]
	heading := 0
	for node := p.doc.FirstChild(); node != nil; node = node.NextSibling() {
		if h, ok := node.(*ast.Heading); ok {
			s := p.sections[heading]
			heading++
			switch h.Level {
			case 2:
				areas = append(areas, area{Name: s.Heading, Anchor: s.Anchor})
			case 3:
				last := &areas[len(areas)-1]
				last.Groups = append(last.Groups, group{Name: s.Heading})
			}
		} else if list, ok := node.(*ast.List); ok {
			groups := areas[len(areas)-1].Groups
			groups[len(groups)-1].Entries = entries(pages, list)
		}
	}
	return areas
}

func entries(pages map[string]*page, list ast.Node) (all []entry) {
	p := pages[index]
	_ = ast.Walk(list, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		link, ok := node.(*ast.Link)
		if !ok || !entering || strings.ContainsAny(string(link.Destination), "#:") {
			return ast.WalkContinue, nil
		}
		to := path.Join(path.Dir(index), string(link.Destination))
		if pages[to] == nil {
			to = path.Join(to, "README.md")
		}
		all = append(all, entry{Label: plain(link, p.source), page: to})
		return ast.WalkSkipChildren, nil
	})
	return all
}

// areaOf returns the index of the area that lists a page or another page in the same folder. If no area does, it returns -1.
func areaOf(areas []area, name string) int {
	listed := func(is func(entry) bool) int {
		return slices.IndexFunc(areas, func(a area) bool {
			return slices.ContainsFunc(a.Groups, func(g group) bool { return slices.ContainsFunc(g.Entries, is) })
		})
	}
	if exact := listed(func(e entry) bool { return e.page == name }); exact >= 0 || path.Dir(name) == path.Dir(index) || path.Dir(name) == "." {
		return exact
	}
	return listed(func(e entry) bool { return path.Dir(e.page) == path.Dir(name) })
}

// unlisted returns an error for each page in docs that readers cannot reach from the index.
func unlisted(pages map[string]*page, areas []area) (mistakes []error) {
	for name := range pages {
		if name != index && strings.HasPrefix(name, "docs/") && areaOf(areas, name) < 0 {
			mistakes = append(mistakes, fmt.Errorf("%s does not link to %s", index, name))
		}
	}
	return mistakes
}
