package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// elsewhere lists test files that use a virtual clock or invented times, although their imports do not show it.
var elsewhere = []string{"../internal/agent/drain/drain_test.go", "../internal/agent/watching_test.go"}

// TestHostTestsDoNotCompareTimes: no test on the real clock compares elapsed times, because they depend on the machine.
func TestHostTestsDoNotCompareTimes(t *testing.T) {
	eachFile(t, func(path string, file *ast.File, at func(token.Pos) token.Position) {
		if !strings.HasSuffix(path, "_test.go") || slices.Contains(elsewhere, path) || onVirtualClock(file) {
			return
		}
		for _, decl := range file.Decls {
			for _, pos := range comparisonsOfTimes(decl) {
				t.Errorf("%s compares elapsed times: compare order or counts, or use synctest", at(pos))
			}
		}
	})
}

// eachFile visits the Go files of the module, except the lab's, because make test does not run the lab's tests.
func eachFile(t *testing.T, visit func(path string, file *ast.File, at func(token.Pos) token.Position)) {
	t.Helper()
	for _, root := range []string{"../internal", "../cmd", "../e2e"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasPrefix(path, "../e2e/lab/") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err == nil {
				visit(path, file, files.Position)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func onVirtualClock(file *ast.File) bool {
	return slices.ContainsFunc(file.Imports, func(spec *ast.ImportSpec) bool {
		return slices.ContainsFunc([]string{"testing/synctest", "internal/kernel/labtest", "e2e/testbed/cluster"}, func(end string) bool {
			return strings.HasSuffix(spec.Path.Value, end+`"`)
		})
	})
}

// comparisonsOfTimes finds comparisons of time.Since, t.Sub, or a variable that holds their result.
func comparisonsOfTimes(decl ast.Decl) (found []token.Pos) {
	times := map[string]bool{}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if name, ok := n.Lhs[0].(*ast.Ident); ok && isTime(n.Rhs[0], nil) {
				times[name.Name] = true
			}
		case *ast.BinaryExpr:
			if slices.Contains([]token.Token{token.LSS, token.GTR, token.LEQ, token.GEQ}, n.Op) && (isTime(n.X, times) || isTime(n.Y, times)) {
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}

func isTime(n ast.Expr, times map[string]bool) bool {
	switch n := n.(type) {
	case *ast.Ident:
		return times[n.Name]
	case *ast.CallExpr:
		name, ok := n.Fun.(*ast.SelectorExpr)
		return ok && (name.Sel.Name == "Since" || name.Sel.Name == "Sub")
	}
	return false
}
