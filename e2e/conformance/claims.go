package conformance

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Claims maps rows to the tests below a folder of sources that claim them, by the names with which the tests report.
type Claims map[int][]string

// FindClaims reads the calls of Proves in the test files below a folder. A call that says too little is an error: one outside
// a test, in a subtest whose name is computed, or with a row that is no number.
func FindClaims(root string) (Claims, error) {
	claims := Claims{}
	err := eachTestFile(root, func(path string, file *ast.File) error {
		found := 0
		for _, decl := range file.Decls {
			test, ok := decl.(*ast.FuncDecl)
			if !ok || test.Recv != nil || !strings.HasPrefix(test.Name.Name, "Test") {
				continue
			}
			n, err := claims.collect(test.Body, test.Name.Name)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			found += n
		}
		if all := countProves(file); all != found {
			return fmt.Errorf("%s: %d of %d calls of Proves stand outside of test functions",
				path, all-found, all)
		}
		return nil
	})
	for _, tests := range claims {
		slices.Sort(tests)
	}
	return claims, err
}

// collect takes the claims of a test's body and of its subtests, and says how many calls it found.
func (c Claims) collect(body ast.Node, test string) (found int, err error) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || err != nil {
			return err == nil
		}
		switch {
		case isProves(call):
			found++
			err = c.claim(call, test)
		case isRun(call):
			var below int
			below, err = c.collect(call.Args[1].(*ast.FuncLit).Body, test+"/"+subtestName(call.Args[0].(*ast.BasicLit)))
			found += below
			return false
		case isNamed(call, "Run") && countProves(call) > 0:
			err = fmt.Errorf("%s: Proves in a subtest wants a t.Run with a literal name and function", test)
		}
		return err == nil
	})
	return found, err
}

func (c Claims) claim(call *ast.CallExpr, test string) error {
	for _, arg := range call.Args[1:] {
		literal, ok := arg.(*ast.BasicLit)
		if !ok || literal.Kind != token.INT {
			return fmt.Errorf("%s: Proves wants numbers as they are", test)
		}
		row, err := strconv.Atoi(literal.Value)
		if err != nil || row < 1 || row > len(Rows) {
			return fmt.Errorf("%s: Proves: there is no row %s", test, literal.Value)
		}
		c[row] = append(c[row], test)
	}
	return nil
}

func isProves(call *ast.CallExpr) bool {
	if !isNamed(call, "Proves") || len(call.Args) == 0 {
		return false
	}
	pkg, ok := call.Fun.(*ast.SelectorExpr).X.(*ast.Ident)
	return ok && pkg.Name == "conformance"
}

// isRun recognises t.Run("name", func(t *testing.T) { ... }).
func isRun(call *ast.CallExpr) bool {
	if !isNamed(call, "Run") || len(call.Args) != 2 {
		return false
	}
	name, ok := call.Args[0].(*ast.BasicLit)
	_, isFunc := call.Args[1].(*ast.FuncLit)
	return ok && name.Kind == token.STRING && isFunc
}

// isNamed recognises a call of a method or function of a package by its name.
func isNamed(call *ast.CallExpr, name string) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == name
}

// subtestName spells a name as the testing package reports it.
func subtestName(literal *ast.BasicLit) string {
	name, _ := strconv.Unquote(literal.Value)
	return strings.Map(func(r rune) rune {
		if r == ' ' {
			return '_'
		}
		return r
	}, name)
}

func countProves(in ast.Node) int {
	n := 0
	ast.Inspect(in, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok && isProves(call) {
			n++
		}
		return true
	})
	return n
}

// testExists says whether a folder has a test function of a name.
func testExists(root, folder, test string) (bool, error) {
	found := false
	err := eachTestFile(filepath.Join(root, folder), func(_ string, file *ast.File) error {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			found = found || ok && f.Recv == nil && f.Name.Name == test
		}
		return nil
	})
	return found, err
}

func eachTestFile(root string, do func(path string, file *ast.File) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		return do(path, file)
	})
}
