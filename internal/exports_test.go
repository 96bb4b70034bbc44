package internal

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestExportedNamesHaveUsers: each exported function and variable of the packages below internal is used by another
// package.
func TestExportedNamesHaveUsers(t *testing.T) {
	exported, used := map[string]token.Position{}, map[string]bool{}
	eachFile(t, func(path string, file *ast.File, at func(token.Pos) token.Position) {
		imports := map[string]string{}
		for _, spec := range file.Imports {
			imported, _ := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			imports[filepath.Base(imported)] = imported // the module imports none of its packages under another name
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := s.X.(*ast.Ident); ok {
					used[imports[pkg.Name]+"."+s.Sel.Name] = true
				}
			}
			return true
		})
		for _, name := range declaredIn(file) {
			if name.IsExported() && strings.HasPrefix(path, "../internal/") && !strings.HasSuffix(path, "_test.go") {
				exported[strings.TrimPrefix(filepath.Dir(path), "../")+"."+name.Name] = at(name.Pos())
			}
		}
	})
	for name, pos := range exported {
		if !used[name] {
			t.Errorf("%s: no other package uses %s: delete or unexport it", pos, name)
		}
	}
}

func declaredIn(file *ast.File) (names []*ast.Ident) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR {
					names = append(names, v.Names...)
				}
			}
		}
	}
	return names
}
