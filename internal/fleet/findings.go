package fleet

import (
	"cmp"
	"regexp"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

type found struct {
	severity        finding.Severity
	subject, remedy string
	evidence        map[string]*observed
}

type observed struct {
	problem  string
	evidence []string
	nodes    nodeSet
}

// numbers matches the parts that may differ between nodes in otherwise equal problems: percentages, dates, addresses.
var numbers = regexp.MustCompile(`[0-9]+`)

// addFinding adds a node's finding. Findings of different nodes are merged if they differ only in evidence and numbers.
func (m *Merger) addFinding(node int, f finding.Finding) {
	same := Finding{Severity: f.Severity, Subject: f.Subject, Problem: f.Problem, Remedy: f.Remedy}.id()
	entry := m.findings[same]
	if entry == nil {
		entry = &found{f.Severity, f.Subject, f.Remedy, map[string]*observed{}}
	}
	evidence := key(append([]string{f.Problem}, f.Evidence...))
	if add(m, entry.evidence, evidence, func() *observed { return &observed{problem: f.Problem, evidence: append([]string{}, f.Evidence...)} }) {
		m.findings[same] = entry
		entry.evidence[evidence].nodes.add(node)
	}
}

func (f Finding) id() string {
	return key([]string{string(f.Severity), f.Subject, numbers.ReplaceAllString(f.Problem, "0"), f.Remedy})
}

func (f *found) report(names namer) Finding {
	out := Finding{Severity: f.severity, Subject: f.subject, Remedy: f.remedy}
	var nodes nodeSet
	for _, o := range f.evidence {
		nodes.addAll(o.nodes)
		out.Evidence = append(out.Evidence, Evidence{o.problem, o.evidence, names.of(o.nodes)})
	}
	out.Nodes = names.of(nodes)
	slices.SortFunc(out.Evidence, func(a, b Evidence) int {
		return cmp.Or(-cmp.Compare(len(a.Nodes), len(b.Nodes)), slices.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Problem, b.Problem), slices.Compare(a.Observed, b.Observed))
	})
	out.Problem = out.Evidence[0].Problem
	return out
}

var bySeverity = []finding.Severity{finding.Broken, finding.Warning, finding.Notice}

func compareFindings(a, b Finding) int {
	return cmp.Or(cmp.Compare(slices.Index(bySeverity, a.Severity), slices.Index(bySeverity, b.Severity)), -cmp.Compare(len(a.Nodes), len(b.Nodes)),
		cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Problem, b.Problem), cmp.Compare(a.Remedy, b.Remedy))
}
