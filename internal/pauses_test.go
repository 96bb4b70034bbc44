package internal

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// The loop in counts ends even if the clock does not advance, because each iteration increments a counter.
const counts = "../e2e/stories/scale/latency_test.go"

// TestLoopsInGuestsPause: a virtual clock does not advance while a program runs. A loop that waits for a time or for
// another goroutine would therefore never end without a pause.
func TestLoopsInGuestsPause(t *testing.T) {
	loops := 0
	eachFile(t, func(path string, file *ast.File, at func(token.Pos) token.Position) {
		if path == counts || !strings.HasPrefix(path, "../e2e/testbed/") && !onVirtualClock(file) {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if loop, ok := n.(*ast.ForStmt); ok && waits(loop) {
				loops++
				if !pauses(loop) {
					t.Errorf("%s waits without a pause, such as time.Sleep(time.Millisecond)", at(loop.Pos()))
				}
			}
			return true
		})
	})
	if loops < 10 {
		t.Errorf("found only %d loops that wait", loops)
	}
}

// waits reports whether the condition of a loop, or of an if statement in it, depends on the time or on another
// goroutine.
func waits(loop *ast.ForStmt) (found bool) {
	asks := func(condition ast.Expr, names ...string) {
		ast.Inspect(condition, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			found = found || ok && slices.Contains(names, selected(call))
			return true
		})
	}
	if loop.Cond != nil {
		asks(loop.Cond, "Since", "Until", "Before", "After", "Err", "Load", "Running")
	}
	inLoop(loop, func(n ast.Node) {
		if branch, ok := n.(*ast.IfStmt); ok {
			asks(branch.Cond, "Since", "Until", "Before", "After")
		}
	})
	return found
}

func pauses(loop *ast.ForStmt) (found bool) {
	inLoop(loop, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.SelectStmt:
			found = true
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		case *ast.CallExpr:
			found = found || slices.Contains([]string{"Sleep", "Wait"}, selected(n))
		}
	})
	return found
}

// inLoop visits the nodes of a loop, except function literals in it.
func inLoop(loop *ast.ForStmt, visit func(ast.Node)) {
	ast.Inspect(loop, func(n ast.Node) bool {
		if _, ok := n.(*ast.FuncLit); ok {
			return false
		}
		if n != nil {
			visit(n)
		}
		return true
	})
}

func selected(call *ast.CallExpr) string {
	if name, ok := call.Fun.(*ast.SelectorExpr); ok {
		return name.Sel.Name
	}
	return ""
}
