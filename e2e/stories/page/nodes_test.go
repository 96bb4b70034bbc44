package page

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/browser"
	"github.com/kube-ipvs/kube-ipvs/internal/ui/node"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// changing is a node whose health a test changes.
type changing struct {
	node.Sources
	ill atomic.Bool
}

func newChanging(name string, ill bool) *changing {
	c := &changing{Sources: sources()}
	c.ill.Store(ill)
	all := c.View
	c.View = func(ctx context.Context, service string) (*view.View, string, error) {
		v, silence, err := all(ctx, service)
		if v.Node.Name = name; !c.ill.Load() {
			v.NodeProblems = nil
		}
		return v, silence, err
	}
	return c
}

// verdict waits until the header and the title show a node's verdict.
func verdict(p *browser.Page, name, verdict string) {
	p.Until(fmt.Sprintf("document.getElementById('verdict').textContent === %q && document.title === %q", verdict, name+" "+verdict+" - kube-ipvs"))
}

// TestRedrawAfterAChoice: a browser keeps the focus on a list of choices after a choice. The page follows the node all the same.
func TestRedrawAfterAChoice(t *testing.T) {
	p := browser.Open(t)
	n := newChanging("node-1", true)
	p.Go(serve(t, n.Sources, sources()))
	drawn(p, "overview")
	verdict(p, "node-1", "warning")
	p.Eval("document.getElementById('node').focus()")
	n.ill.Store(false)
	verdict(p, "node-1", "well")
	p.Eval("location.hash = '#/services'")
	drawn(p, "services")
	p.Eval("document.getElementById('sort').focus()")
	n.ill.Store(true)
	verdict(p, "node-1", "warning")
	if focus := p.Eval("document.activeElement.id"); focus != `"sort"` {
		t.Errorf("the page moved the focus to %s", focus)
	}
}
