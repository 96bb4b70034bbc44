package page

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/browser"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
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

func choose(p *browser.Page, name string) {
	p.Eval(fmt.Sprintf("document.getElementById('node').value = %q; document.getElementById('node').dispatchEvent(new Event('change'))", name))
}

// TestVerdictOfTheChosenNode: after a change of node, each view shows the verdict of the new node, also if the view itself does not need it.
func TestVerdictOfTheChosenNode(t *testing.T) {
	p := browser.Open(t)
	silent := sources()
	silent.View = func(context.Context, string) (*view.View, string, error) {
		return nil, "", errors.New("the pod was deleted")
	}
	p.Go(serve(t, newChanging("node-1", true).Sources, newChanging("node-2", false).Sources, silent))
	drawn(p, "overview")
	verdict(p, "node-1", "warning")
	for _, name := range []string{"changes", "service", "explain", "services"} {
		p.Eval(fmt.Sprintf("location.hash = '#/%s/' + encodeURIComponent('shop/service-004')", name))
		drawn(p, name)
		choose(p, "node-2")
		verdict(p, "node-2", "well")
		choose(p, "node-1")
		verdict(p, "node-1", "warning")
	}
	shows(p, "shop/service-004")
	choose(p, "node-3")
	shows(p, "the pod was deleted")
	verdict(p, "node-3", "unknown")
	if text := p.Eval("document.getElementById('main').innerText"); text != `""` {
		t.Errorf("beside the error, the page shows the data of another node: %s", text)
	}
}

// TestDoctorOfTheChosenNode: a redraw does not hide that doctor is running, and doctor's answer about one node is not shown as another's.
func TestDoctorOfTheChosenNode(t *testing.T) {
	p := browser.Open(t)
	n := newChanging("node-1", true)
	diagnose, finish := n.Doctor, make(chan struct{})
	n.Doctor = func(ctx context.Context) (doctor.Report, error) {
		<-finish
		return diagnose(ctx)
	}
	p.Go(serve(t, n.Sources, newChanging("node-2", false).Sources))
	drawn(p, "overview")
	p.Eval("location.hash = '#/problems'")
	drawn(p, "problems")
	p.Eval("document.getElementById('doctor').click()")
	p.Eval("window.before = document.getElementById('doctor'), 0")
	const runs = "document.getElementById('doctor').disabled && document.getElementById('diagnosis').innerText === 'examining'"
	p.Until(runs)
	p.Until("!window.before.isConnected") // redrawn
	if p.Eval(runs) != "true" {
		t.Error("after a redraw, the page does not show that doctor is running")
	}
	choose(p, "node-2")
	verdict(p, "node-2", "well")
	close(finish)
	p.Until("performance.getEntriesByType('resource').some((e) => e.name.includes('api/doctor') && e.responseEnd > 0)")
	p.Eval("window.before = document.getElementById('doctor'), 0")
	p.Until("!window.before.isConnected")
	if text := p.Eval("document.getElementById('diagnosis').innerText"); text != `""` {
		t.Errorf("doctor's answer about node-1 is shown for node-2: %s", text)
	}
	p.Eval("document.getElementById('doctor').click()")
	shows(p, "smaller than that of the uplink")
}

// TestSlowPath: redraws keep an answer that takes longer than the time between them, and an error.
func TestSlowPath(t *testing.T) {
	p := browser.Open(t)
	src := sources()
	trace, answer := src.Explain, make(chan struct{})
	src.Explain = func(ctx context.Context, to, from string) ([]explain.Explanation, error) {
		<-answer
		return trace(ctx, to, from)
	}
	p.Go(serve(t, src))
	drawn(p, "overview")
	p.Eval("location.hash = '#/explain/10.96.0.1:80'")
	shows(p, "reading the kernel")
	redrawn(p)
	close(answer)
	shows(p, "drops the packet")
	p.Eval("location.hash = '#/explain/nowhere'")
	shows(p, "neither an address with a port nor a Service")
	redrawn(p)
	if p.Eval("document.getElementById('error').hidden") != "false" {
		t.Error("a redraw hides the error")
	}
}

// redrawn waits for two overviews: the first one may belong to the opening of the view.
func redrawn(p *browser.Page) {
	p.Eval("performance.clearResourceTimings()")
	p.Until("performance.getEntriesByType('resource').filter((e) => e.name.includes('api/overview') && e.responseEnd > 0).length >= 2")
}
