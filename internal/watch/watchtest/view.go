package watchtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Deadline is the timeout for expected events. It may be long, because only failing tests wait that long.
const Deadline = 20 * time.Second

// View is the model that a reader builds from the changes of a source.
type View struct {
	Services map[model.ServiceID]*model.Service
	Problems map[model.ObjectRef][]model.Problem
	Nodes    map[string]*model.Node
}

// NewView returns an empty View.
func NewView() *View {
	return &View{Services: map[model.ServiceID]*model.Service{}, Problems: map[model.ObjectRef][]model.Problem{}, Nodes: map[string]*model.Node{}}
}

// Take applies changes.
func (v *View) Take(changes model.Changes) {
	merge(v.Services, changes.Services, func(s *model.Service) bool { return s == nil })
	merge(v.Problems, changes.Problems, func(list []model.Problem) bool { return len(list) == 0 })
	merge(v.Nodes, changes.Nodes, func(n *model.Node) bool { return n == nil })
}

func merge[K comparable, V any](into, changes map[K]V, gone func(V) bool) {
	maps.Copy(into, changes)
	maps.DeleteFunc(into, func(_ K, value V) bool { return gone(value) })
}

// String formats the view with one line per Service, slice, Node and Problem.
func (v *View) String() string {
	var lines []string
	for _, svc := range v.Services {
		lines = append(lines, ServiceText(svc))
	}
	for object, list := range v.Problems {
		for _, p := range list {
			if p.Object != object {
				lines = append(lines, fmt.Sprintf("MISFILED under %s", object))
			}
			lines = append(lines, p.String())
		}
	}
	for _, node := range v.Nodes {
		lines = append(lines, NodeText(node))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// ServiceText formats a Service with its slices.
func ServiceText(svc *model.Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", svc.ID, svc.ClusterIPs)
	for _, p := range svc.Ports {
		fmt.Fprintf(&b, " %s=%d/%v", p.Name, p.Port, p.Protocol)
		writeIf(&b, p.NodePort > 0, "@%d", p.NodePort)
	}
	writeIf(&b, svc.AffinityTimeout > 0, " affinity=%v", svc.AffinityTimeout)
	writeIf(&b, len(svc.ExternalIPs) > 0, " external=%v", svc.ExternalIPs)
	writeIf(&b, len(svc.LoadBalancerIPs) > 0, " balancer=%v", svc.LoadBalancerIPs)
	writeIf(&b, len(svc.SourceRanges) > 0, " from=%v", svc.SourceRanges)
	writeIf(&b, svc.InternalLocal, " internal=local")
	writeIf(&b, svc.ExternalLocal, " external=local")
	writeIf(&b, svc.HealthCheckPort > 0, " health=%d", svc.HealthCheckPort)
	for _, s := range svc.Slices {
		fmt.Fprintf(&b, "\n%v  %s", svc.ID, SliceText(s))
	}
	return b.String()
}

func writeIf(b *strings.Builder, condition bool, format string, args ...any) {
	if condition {
		fmt.Fprintf(b, format, args...)
	}
}

// NodeText formats a Node on one line.
func NodeText(n *model.Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s %v pods=%v", n.Name, n.Addresses, n.PodCIDRs)
	writeIf(&b, n.Zone != "", " zone=%s", n.Zone)
	writeIf(&b, n.Leaving, " leaving")
	return b.String()
}

// SliceText formats a slice on one line.
func SliceText(s *model.EndpointSlice) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v", s.Name, s.Family)
	for _, p := range s.Ports {
		fmt.Fprintf(&b, " %s=%d/%v", p.Name, p.Port, p.Protocol)
	}
	for _, e := range s.Endpoints {
		fmt.Fprintf(&b, " %v", e.Addr)
		for _, flag := range []struct {
			set  bool
			name string
		}{{e.Ready, "ready"}, {e.Serving, "serving"}, {e.Terminating, "terminating"}} {
			if flag.set {
				b.WriteString("+" + flag.name)
			}
		}
		for _, s := range []string{e.Node, e.Zone, e.Pod} {
			if s != "" {
				b.WriteString("@" + s)
			}
		}
		if h := e.Hints; h != nil {
			writeIf(&b, len(h.ForNodes) > 0, "+nodes%v", h.ForNodes)
			writeIf(&b, len(h.ForZones) > 0, "+zones%v", h.ForZones)
		}
	}
	return b.String()
}

// Source is implemented by the Store and both sources.
type Source interface {
	Changed() <-chan struct{}
	Synced() bool
	Take() model.Changes
}

// Await takes changes until the condition is true.
func (v *View) Await(t *testing.T, src Source, what string, condition func() bool) {
	t.Helper()
	late := time.After(Deadline)
	for {
		if src.Synced() {
			v.Take(src.Take())
			if condition() {
				return
			}
		}
		select {
		case <-src.Changed():
		case <-late:
			t.Fatalf("%s: timed out after %v; synced %v, got\n%s", what, Deadline, src.Synced(), v)
		}
	}
}

// AwaitText waits until the view equals the text.
func (v *View) AwaitText(t *testing.T, src Source, what, want string) {
	t.Helper()
	v.Await(t, src, what+", want\n"+want, func() bool { return v.String() == want })
}

// Run starts a source and stops it at the end of the test. Therefore every test checks that the source stops.
func Run(t *testing.T, source interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Error("Run did not return after its context ended")
		}
	})
}
