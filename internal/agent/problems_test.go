package agent_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Each Problem is reported as new once and as resolved once, unless another Problem of the same field replaces it.
func TestProblemChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		known, counts := agent.NewKnownProblems("node-1"), map[agent.Check]int{}
		latest := map[agent.Check][]model.Problem{}
		for range rapid.IntRange(1, 20).Draw(t, "reports") {
			r := &agent.Report{Problems: map[model.ServiceID][]model.Problem{}, Unreadable: map[model.ObjectRef][]model.Problem{}}
			for _, name := range []string{"a", "b"} {
				id := model.ServiceID{Namespace: "default", Name: name}
				if rapid.Bool().Draw(t, "compiled") {
					r.Problems[id] = someProblems(t, id.Ref())
					latest[agent.Check{Object: id.Ref()}] = r.Problems[id]
				}
				if rapid.Bool().Draw(t, "read") {
					r.Unreadable[id.Ref()] = someProblems(t, id.Ref())
					latest[agent.Check{Reading: true, Object: id.Ref()}] = r.Unreadable[id.Ref()]
				}
			}
			r.NodeProblems = someProblems(t, model.NodeRef("node-1"))
			latest[agent.Check{Object: model.NodeRef("node-1")}] = r.NodeProblems
			known.Update(r)
			for _, c := range r.ProblemChanges {
				counts[c.Check] += c.More
				for _, p := range c.Added {
					if !slices.Contains(latest[c.Check], p) {
						t.Fatalf("a new Problem was not reported: %s", p)
					}
				}
				for _, p := range c.Resolved {
					if slices.ContainsFunc(latest[c.Check], func(o model.Problem) bool { return o.Field == p.Field }) {
						t.Fatalf("reported as resolved although its field still has a Problem: %s", p)
					}
				}
			}
			again := *r
			again.ProblemChanges = nil
			if known.Update(&again); len(again.ProblemChanges) > 0 {
				t.Fatalf("a repeated report changes problems: %+v", again.ProblemChanges)
			}
		}
		for check, problems := range latest {
			if counts[check] != len(problems) {
				t.Fatalf("%+v: counted %d Problems, but %d are reported", check, counts[check], len(problems))
			}
		}
	})
}

func someProblems(t *rapid.T, object model.ObjectRef) (problems []model.Problem) {
	for _, field := range []string{"x", "y", "z"} {
		if reason := rapid.SampledFrom([]string{"", "one", "two"}).Draw(t, field); reason != "" {
			problems = append(problems, model.Problem{Object: object, Field: field, Reason: reason})
		}
	}
	return problems
}
