package site

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// repository is the URL prefix of links to files that are not part of the site, such as tests.
const repository = "https://github.com/kube-ipvs/kube-ipvs/blob/main/"

// resolve changes a page's links so that they point to the site's files. It returns the page's pictures, and an error for each broken link.
func resolve(root string, pages map[string]*page, p *page) (pictures []string, mistakes []error) {
	_ = ast.Walk(p.doc, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := node.(type) {
		case *ast.Link:
			to, err := destination(root, pages, p, string(n.Destination))
			if err != nil {
				mistakes = append(mistakes, fmt.Errorf("%s links to %s: %w", p.name, n.Destination, err))
			}
			n.Destination = []byte(to)
		case *ast.Image:
			if target := string(n.Destination); !strings.Contains(target, "://") {
				pictures = append(pictures, path.Join(path.Dir(p.name), target))
			}
		}
		return ast.WalkContinue, nil
	})
	return pictures, mistakes
}

func destination(root string, pages map[string]*page, from *page, target string) (string, error) {
	if strings.Contains(target, "://") {
		return target, nil
	}
	name, fragment, hasFragment := strings.Cut(target, "#")
	to := from.name
	if name != "" {
		to = path.Join(path.Dir(from.name), name)
	}
	found := pages[to]
	if found == nil {
		found = pages[path.Join(to, "README.md")]
	}
	if found == nil {
		_, err := os.Stat(filepath.Join(root, to))
		return repository + to, err
	}
	relative, err := filepath.Rel(path.Dir(from.name), output(found.name))
	if !hasFragment || err != nil {
		return relative, err
	}
	if !slices.ContainsFunc(found.sections, func(s section) bool { return s.Anchor == fragment }) {
		return relative, fmt.Errorf("%s has no such heading", found.name)
	}
	return relative + "#" + fragment, nil
}
