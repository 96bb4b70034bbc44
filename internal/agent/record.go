package agent

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/journal"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Each list of an entry is bounded. The journal bounds the total size of all entries.
const (
	maxServices = 50
	maxFailures = 8
	maxProblems = 8
)

func record(to *journal.Ring, r *Report, mode kernel.Mode) {
	e := &view.PastSync{
		Time: r.Started, Kind: r.Kind, Operations: countOperations(r, mode), Failures: view.Some[view.Failure]{Items: []view.Failure{}},
		Drift:    view.Some[string]{Count: r.Drift, Items: some(r.Drifted, maxFound, contest.Finding.String).Items},
		Problems: problemTexts(r, func(c ProblemChange) []model.Problem { return c.Added }),
		Resolved: problemTexts(r, func(c ProblemChange) []model.Problem { return c.Resolved }),
	}
	for _, results := range [][]Result{r.Results, r.OldRules} {
		for _, result := range results {
			fail(e, result, mode)
		}
	}
	if r.Err != nil {
		e.Error = journal.Text(r.Err.Error())
	}
	if r.Waiting != nil {
		e.Waiting = journal.Text(r.Waiting.Error())
	}
	if len(e.Operations) == 0 && !e.Failed() && e.Waiting == "" && e.Drift.Count+e.Problems.Count+e.Resolved.Count == 0 {
		return
	}
	e.Causes = make([]view.Cause, 0, len(r.Causes)+1)
	for _, c := range r.Causes {
		c.Objects.Items = append([]string{}, c.Objects.Items...)
		e.Causes = append(e.Causes, c)
	}
	if r.EndedFlows > 0 {
		e.Causes = append(e.Causes, view.Cause{Reason: view.ForConnections, Objects: view.Some[string]{Items: []string{}}})
	}
	touched := r.Compiled
	if !slices.Equal(r.Compiled, r.Written) {
		touched = slices.Concat(r.Compiled, r.Written)
		slices.SortFunc(touched, model.ServiceID.Compare)
		touched = slices.Compact(touched)
	}
	e.Services = some(touched, maxServices, model.ServiceID.String)
	e.Seconds = r.Duration.Seconds()
	e.Stages = view.StageSeconds{
		Waited: r.Waited.Seconds(), Gather: r.Stages.Gather.Seconds(), Bootstrap: r.Stages.Bootstrap.Seconds(),
		Compile: max(0, r.Stages.Compile-r.Stages.Gather).Seconds(), Plan: r.Stages.Plan.Seconds(), Apply: r.Stages.Apply.Seconds(),
	}
	to.Add(e)
}

func fail(e *view.PastSync, r Result, mode kernel.Mode) {
	switch {
	case r.Skipped:
		e.Skipped++
	case r.failed():
		if e.Failures.Count++; e.Failures.Count <= maxFailures {
			e.Failures.Items = append(e.Failures.Items, view.Failure{Operation: journal.Text(r.Op.In(mode)), Error: journal.Text(r.Err.Error())})
		}
	}
}

func problemTexts(r *Report, of func(ProblemChange) []model.Problem) view.Some[string] {
	all := view.Some[string]{Items: []string{}}
	for _, change := range r.ProblemChanges {
		list := of(change)
		all.Items = append(all.Items, some(list, maxProblems-len(all.Items), model.Problem.String).Items...)
		all.Count += len(list)
	}
	return all
}

var kindNames = map[kernel.Kind]string{
	kernel.KindServer: "virtual servers", kernel.KindDestination: "destinations", kernel.KindSet: "sets", kernel.KindMember: "set entries",
	kernel.KindRules: "rule chains", kernel.KindAddress: "addresses", kernel.KindDevice: "device", kernel.KindSysctl: "sysctls", kernel.KindTimeouts: "timeouts",
}

func planeOf(kind kernel.Kind, mode kernel.Mode) string {
	switch {
	case kind == kernel.KindAddress || kind == kernel.KindDevice:
		return "address"
	case kind == kernel.KindSysctl:
		return "sysctl"
	case kind == kernel.KindServer || kind == kernel.KindDestination || kind == kernel.KindTimeouts, mode == kernel.Userspace: // sets are in the process, too
		return mode.DataPlane()
	case mode.RulesInNFTables():
		return "nftables"
	case kind == kernel.KindRules:
		return "iptables"
	}
	return "ipset"
}

func countOperations(r *Report, mode kernel.Mode) []view.OperationCount {
	counts := [kernel.KindTimeouts + 1]view.OperationCount{}
	for _, results := range [][]Result{r.Results, r.OldRules} {
		for _, result := range results {
			if result.Err == nil && !result.Skipped {
				count(&counts[result.Op.KindOf()], result.Op.Verb)
			}
		}
	}
	all := []view.OperationCount{}
	for kind, c := range counts {
		if c.Added+c.Changed+c.Removed > 0 {
			c.Object, c.Plane = kindNames[kernel.Kind(kind)], planeOf(kernel.Kind(kind), mode)
			all = append(all, c)
		}
	}
	if r.EndedFlows > 0 {
		all = append(all, view.OperationCount{Object: "connections", Plane: "conntrack", Removed: r.EndedFlows})
	}
	return all
}

func count(c *view.OperationCount, verb kernel.Verb) {
	switch verb {
	case kernel.Create:
		c.Added++
	case kernel.Delete:
		c.Removed++
	default:
		c.Changed++
	}
}
