package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Answer is the answer of one node.
type Answer struct {
	Node string `json:"node"`
	Pod  string `json:"pod,omitempty"`
	// ExitStatus is the exit status of the command on the node; nil if the node did not respond.
	ExitStatus *int `json:"exitStatus,omitempty"`
	// Document is the JSON output of the command; nil if there is none.
	Document json.RawMessage `json:"document,omitempty"`
	// Messages are the last lines that the command wrote to stderr, if there is a document although the command failed.
	Messages []string `json:"messages,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// Report is the merged result.
type Report struct {
	view.Header
	Command string `json:"command"`
	// Verdict is "go" or "no-go" for preflight, and empty for other commands.
	Verdict string `json:"verdict,omitempty"`
	// ExitStatus is the worst exit status of the nodes. A node that did not respond counts as 1. For a command with a
	// verdict, a node that was not queried also counts as 1.
	ExitStatus int `json:"exitStatus"`
	// Rows are the answers. Nodes with the same answer share a row.
	Rows []Row `json:"rows"`
	// Findings are the nodes' findings, the most serious first. Unchecked lists the subjects that they could not check.
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"unchecked"`
	// Disagreements lists subjects on which nodes should agree but do not.
	Disagreements []string `json:"disagreements"`
	// Silent lists the nodes that did not respond.
	Silent []Silence `json:"silent"`
	// NotAsked is the number of nodes that were not queried, because there are too many or the command was stopped.
	NotAsked int    `json:"notAsked"`
	Stopped  string `json:"stopped,omitempty"`
	// Skipped counts the nodes that were not queried because agents do not run there.
	Skipped []Skipped `json:"skipped,omitempty"`
	// LeftOut is the number of statements omitted to limit the size of the report.
	LeftOut int `json:"leftOut,omitempty"`
	// Nodes contains the answers, sorted by node.
	Nodes []Answer `json:"nodes"`
}

// Silence is a node that did not respond.
type Silence struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}

// Skipped is a number of nodes with a label that keeps agents away.
type Skipped struct {
	Label string `json:"label"`
	Nodes int    `json:"nodes"`
}

// SkippedText describes skipped nodes; it is empty if there are none.
func SkippedText(skipped []Skipped) string {
	all, parts := 0, []string{}
	for _, s := range skipped {
		all += s.Nodes
		parts = append(parts, fmt.Sprintf("%d with the label %s", s.Nodes, s.Label))
	}
	switch all {
	case 0:
		return ""
	case 1:
		return "1 node was skipped, because agents do not run there: " + parts[0]
	}
	return fmt.Sprintf("%d nodes were skipped, because agents do not run there: %s", all, strings.Join(parts, ", "))
}

// Row is the answer of one or more nodes about a subject.
type Row struct {
	// Subject and Says are cells of the table. Says is the answer about the subject.
	Subject []string `json:"subject"`
	Says    []string `json:"says"`
	// Sums are the totals of the nodes' numbers; absent if no node could count.
	Sums  []uint64 `json:"sums,omitempty"`
	Nodes []string `json:"nodes"`
}

// Finding is a finding that one or more nodes reported.
type Finding struct {
	Severity finding.Severity `json:"severity"`
	Subject  string           `json:"subject"`
	// Problem is the first node's problem. Evidence contains the problem of each node, because numbers may differ.
	Problem  string     `json:"problem"`
	Remedy   string     `json:"remedy"`
	Evidence []Evidence `json:"evidence"`
	Nodes    []string   `json:"nodes"`
}

// Evidence is what one or more nodes observed.
type Evidence struct {
	Problem  string   `json:"problem"`
	Observed []string `json:"observed"`
	Nodes    []string `json:"nodes"`
}

// Unchecked is a subject that one or more nodes could not check.
type Unchecked struct {
	What  string   `json:"what"`
	Nodes []string `json:"nodes"`
}

// severities lists the exit statuses of a command in ascending order of severity.
var severities = map[string][]int{
	"doctor":  {0, 1, 3, 2}, // warnings, not examined, broken
	"explain": {0, 4, 1, 3}, // unclear, unknown, does not arrive
}

func worse(command string, a, b int) bool {
	rank := func(status int) int {
		if i := slices.Index(severities[command], status); i >= 0 {
			return i
		}
		return status
	}
	return rank(a) > rank(b)
}

// Verdicts of preflight.
const (
	Go   = "go"
	NoGo = "no-go"
)

func (r *Report) readiness() string {
	all := len(r.Nodes) + r.NotAsked
	every := "this node"
	if all > 1 {
		every = fmt.Sprintf("all %d nodes", all)
	}
	switch warned := slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == finding.Warning }); {
	case r.Verdict == "":
		return ""
	case r.Verdict == NoGo && len(r.broken()) == 0:
		return fmt.Sprintf("%s: only %d of %d nodes were checked", NoGo, r.responded(), all)
	case r.Verdict == NoGo:
		return fmt.Sprintf("%s: kube-ipvs cannot serve on %d of %d nodes", NoGo, len(r.broken()), all)
	case warned:
		return fmt.Sprintf("%s: kube-ipvs can serve on %s, with the limits listed in the warnings", Go, every)
	}
	return fmt.Sprintf("%s: kube-ipvs can serve on %s", Go, every)
}

// broken returns the nodes with a broken finding.
func (r *Report) broken() map[string]bool {
	nodes := map[string]bool{}
	for _, f := range r.Findings {
		for _, node := range f.Nodes {
			if f.Severity == finding.Broken {
				nodes[node] = true
			}
		}
	}
	return nodes
}

// incomplete reports whether answers from other nodes could change the report. A verdict covers all nodes, even
// those that were not selected.
func (r *Report) incomplete() bool {
	return len(r.Silent) > 0 || r.Stopped != "" || r.LeftOut > 0 || r.NotAsked > 0 && commands[r.Command].verdict
}
