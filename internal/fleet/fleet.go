package fleet

import (
	"encoding/json"
	"slices"

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
	// Error is the reason why there is no document.
	Error string `json:"error,omitempty"`
}

// Report is the merged result.
type Report struct {
	view.Header
	Command string `json:"command"`
	// ExitStatus is the worst exit status of the nodes. A node that did not answer counts as 1, and so does one that was not asked for a verdict.
	ExitStatus int `json:"exitStatus"`
	// Rows are the answers. Nodes with the same answer share a row.
	Rows []Row `json:"rows"`
	// Findings are what the nodes found, the most serious first. Unchecked is what they could not check.
	Findings  []Finding   `json:"findings"`
	Unchecked []Unchecked `json:"unchecked"`
	// Disagreements lists what nodes should agree about, but do not.
	Disagreements []string `json:"disagreements"`
	// Silent are the nodes that did not answer, each with the reason.
	Silent []Silence `json:"silent"`
	// NotAsked is the number of nodes that were not asked: because there are too many, or because the command was stopped.
	NotAsked int `json:"notAsked"`
	// Stopped is why the command ended before all nodes had answered; empty if it did not.
	Stopped string `json:"stopped,omitempty"`
	// LeftOut is the number of statements that the report has no room for.
	LeftOut int `json:"leftOut,omitempty"`
	// Nodes are the answers, sorted by node.
	Nodes []Answer `json:"nodes"`
}

// Silence is a node that did not answer.
type Silence struct {
	Node  string `json:"node"`
	Error string `json:"error"`
}

// Row is the answer of one or more nodes about a subject.
type Row struct {
	// Subject identifies what the row is about, and Says is their answer. Both are cells of the table.
	Subject []string `json:"subject"`
	Says    []string `json:"says"`
	// Sums are the numbers of its nodes, added up.
	Sums  []uint64 `json:"sums,omitempty"`
	Nodes []string `json:"nodes"`
}

// Finding is what one or more nodes found.
type Finding struct {
	Severity finding.Severity `json:"severity"`
	Subject  string           `json:"subject"`
	// Problem is that of the first node. Evidence has the problem of nodes where it differs, such as in a number.
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

// Unchecked is what one or more nodes could not check, and why.
type Unchecked struct {
	What  string   `json:"what"`
	Nodes []string `json:"nodes"`
}

// severities lists the exit statuses of a command from harmless to worst.
var severities = map[string][]int{
	"doctor":  {0, 1, 3, 2}, // warnings, not examined, broken
	"explain": {0, 4, 1, 3}, // unclear, unknown, does not arrive
}

// worse reports whether exit status a of a command is worse than b.
func worse(command string, a, b int) bool {
	rank := func(status int) int {
		if i := slices.Index(severities[command], status); i >= 0 {
			return i
		}
		return status
	}
	return rank(a) > rank(b)
}

// incomplete reports whether nodes are missing in the report that could change it. A verdict is about all nodes, so it is incomplete also
// if some nodes were not chosen.
func (r *Report) incomplete() bool {
	return len(r.Silent) > 0 || r.Stopped != "" || r.LeftOut > 0 || r.NotAsked > 0 && commands[r.Command].verdict
}
