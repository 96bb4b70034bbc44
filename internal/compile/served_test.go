package compile_test

import (
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// TestServed: a Service serves the frontends that it wins, and those of another one after its deletion.
func TestServed(t *testing.T) {
	first, late := compiletest.Service("first", "10.96.0.1", "10.244.0.1"), compiletest.Service("late", "10.96.0.1", "10.244.0.2")
	late.Created = late.Created.Add(time.Hour)
	c := compile.NewCluster(compiletest.Config())
	c.Update(map[model.ServiceID]*model.Service{first.ID: first, late.ID: late}, want.NewTouched())
	if s := c.Served(first.ID); s.Service != first || len(s.Frontends) != 1 || s.Frontends[0].Key.String() != "-t 10.96.0.1:80" || s.Frontends[0].Port != "http" {
		t.Errorf("the first: %+v", s)
	}
	if s := c.Served(late.ID); s.Service != late || len(s.Frontends) != 0 {
		t.Errorf("the late one: %+v", s)
	}
	c.Update(map[model.ServiceID]*model.Service{first.ID: nil}, want.NewTouched())
	if s := c.Served(first.ID); s.Service != nil || len(s.Frontends) != 0 {
		t.Errorf("the deleted one: %+v", s)
	}
	if s := c.Served(late.ID); len(s.Frontends) != 1 {
		t.Errorf("the late one alone: %+v", s)
	}
}
