package doctor

import (
	"cmp"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// Severity orders findings.
type Severity string

// The severities. A notice needs no action: it says what to know about this node.
const (
	Broken  Severity = "broken"
	Warning Severity = "warning"
	Notice  Severity = "notice"
)

// Well is the verdict if there is nothing worse than a notice.
const Well = "well"

var order = map[Severity]int{Broken: 0, Warning: 1, Notice: 2}

// Finding is one thing that is wrong, or worth knowing.
type Finding struct {
	Severity Severity `json:"severity"`
	// Subject is the affected part: the agent, a port, a sysctl, a module.
	Subject string `json:"subject"`
	Problem string `json:"problem"`
	// Evidence is the observed state, as a tool or file shows it.
	Evidence []string `json:"evidence"`
	Remedy   string   `json:"remedy"`
}

// Report is the result of all checks.
type Report struct {
	// Verdict is the most serious severity: broken, warning, or else well.
	Verdict string `json:"verdict"`
	// Findings are sorted, the most serious first.
	Findings []Finding `json:"findings"`
	// Unchecked says what could not be checked, and why.
	Unchecked []string `json:"unchecked"`
}

// checks are all checks, in the order in which findings of one severity are listed.
var checks = []func(Facts) []Finding{
	checkPreflight, checkAgent, checkSources, checkPorts, checkConflicts, checkDrift, checkServices, checkProxies, checkRulesInFront, checkSysctls,
	checkConntrack, checkModules, checkReversePath, checkCertificates,
	checkMTU, checkClock, checkMemory, checkNeighbors, checkARP, checkNFTables, checkForward,
}

// ipvsChecks are those of IPVS itself.
var ipvsChecks = []func(Facts) []Finding{checkTable, checkEstimators, checkIdle}

// Examine runs all checks.
func Examine(f Facts) Report {
	r := Report{Verdict: Well, Findings: []Finding{}, Unchecked: append([]string{}, f.Unread...)}
	for _, check := range checks {
		r.Findings = append(r.Findings, check(f)...)
	}
	if !f.mode().NFTablesBalances() {
		for _, check := range ipvsChecks {
			r.Findings = append(r.Findings, check(f)...)
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(order[a.Severity], order[b.Severity]) })
	if len(r.Findings) > 0 && r.Findings[0].Severity != Notice {
		r.Verdict = string(r.Findings[0].Severity)
	}
	for i := range r.Findings {
		r.Findings[i].Evidence = append([]string{}, r.Findings[i].Evidence...)
	}
	return r
}

// checkPreflight converts the findings of preflight.
func checkPreflight(f Facts) []Finding {
	var found []Finding
	for _, p := range f.Preflight {
		found = append(found, Finding{severityOf(p), p.Subject, p.Problem, nil, p.Fix})
	}
	if f.mode().RulesInNFTables() {
		found = append(found, Finding{Notice, "rules", "sets and rules are kept in " + f.View.Node.Rules, nil, "nothing to do"})
	}
	return found
}

func severityOf(p preflight.Finding) Severity {
	if p.Fatal {
		return Broken
	}
	return Warning
}
