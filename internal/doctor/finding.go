package doctor

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// Report is the result of all checks.
type Report struct {
	// Verdict is the severity of the most serious finding (broken or warning), or well if there is no such finding.
	Verdict string `json:"verdict"`
	// Findings are sorted by severity, the most serious first.
	Findings []finding.Finding `json:"findings"`
	// Paths counts the traced paths of packets. Connected counts the connections that this node opened, to Services and directly to endpoints.
	Paths     int `json:"paths"`
	Connected int `json:"connected"`
	// Unchecked lists the subjects that could not be checked, with the reasons.
	Unchecked []string `json:"unchecked"`
}

// checks run in this order, which is also the order of findings with the same severity.
var checks = []func(Facts) []finding.Finding{
	checkPreflight, checkAgent, checkIPv6, checkVital, checkPaths, checkEndpoints, checkUnrouted, checkLinks, checkOverlaps, checkFixed, checkPorts,
	checkConflicts, checkDrift, checkServices, checkProxies, checkSysctls, checkConntrack, checkModules, checkReversePath, checkCredentials,
	checkMTU, checkClock, checkMemory, checkNeighbors, checkARP, checkForward, checkForwarding, checkLocalPorts, checkLimits, checkDataPlanes,
	checkManagers, checkDenials, checkLog, checkPodInterfaces, checkPodAddresses, checkReplies, checkPathMTU,
	checkDuplicates,
}

// ipvsChecks run only if IPVS balances connections.
var ipvsChecks = []func(Facts) []finding.Finding{checkTable, checkEstimators, checkIdle, checkDropping, checkBackup}

// Examine runs all checks.
func Examine(f Facts) Report {
	r := Report{Findings: []finding.Finding{}, Unchecked: append([]string{}, f.Unread...), Paths: len(f.Walks)}
	for _, w := range f.Walks {
		if w.Connected {
			r.Connected++
		}
	}
	r.Connected += len(f.Endpoints)
	selected := slices.Clone(checks)
	if f.mode().IPVSBalances() {
		selected = append(selected, ipvsChecks...)
	}
	if elsewhere := f.View.Elsewhere(f.Namespace); elsewhere == "" {
		r.Unchecked = append(append(r.Unchecked, unfollowed(f)...), unmeasuredPaths(f)...)
	} else {
		selected = []func(Facts) []finding.Finding{checkNamespace, checkAgent}
		r.Unchecked = append(r.Unchecked, "everything except the agent's own state: "+elsewhere)
	}
	for _, check := range selected {
		r.Findings = append(r.Findings, check(f)...)
	}
	finding.Sort(r.Findings)
	r.Verdict = finding.Verdict(r.Findings)
	return r
}

// Print writes the report as text.
func (r Report) Print(w io.Writer) error {
	err := finding.Print(w, r.Findings)
	fmt.Fprintf(w, "packet paths traced: %d, test connections opened: %d\n", r.Paths, r.Connected)
	for _, u := range r.Unchecked {
		fmt.Fprintf(w, "not checked: %s\n", finding.Printable(u))
	}
	except := ""
	if r.Verdict == finding.Well && len(r.Unchecked) > 0 {
		except = ", except for what was not checked"
	}
	_, failed := fmt.Fprintf(w, "verdict: %s%s\n", r.Verdict, except)
	return errors.Join(err, failed)
}

// checkPreflight returns preflight's findings, and a notice if the rules are in nftables.
func checkPreflight(f Facts) []finding.Finding {
	found := slices.Clone(f.Preflight)
	if f.View != nil && f.mode().RulesInNFTables() {
		found = append(found, finding.New(finding.Notice, "rules", "sets and rules are kept in "+f.View.Node.Rules, nil, "nothing to do"))
	}
	return found
}
