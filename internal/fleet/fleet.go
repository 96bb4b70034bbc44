package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

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
	// Disagreements lists what nodes should agree about, but do not.
	Disagreements []string `json:"disagreements"`
	// Silent are the nodes that did not answer, each with the reason.
	Silent []Silence `json:"silent"`
	// NotAsked is the number of nodes that were not asked because there are too many.
	NotAsked int `json:"notAsked"`
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

// fact is the answer of one node about one subject.
type fact struct {
	subject, says []string
	counts        []uint64
	// local is true if nodes may answer differently about the subject.
	local bool
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

// Merge merges the answers to a question.
func Merge(q Question, answers []Answer, notAsked int) Report {
	r := Report{
		Header: view.Header{APIVersion: "fleet.kube-ipvs.io/v1", Kind: "FleetReport"}, Command: q.Command, NotAsked: notAsked,
		Rows: []Row{}, Disagreements: []string{}, Silent: []Silence{},
		Nodes: slices.SortedFunc(slices.Values(answers), func(a, b Answer) int { return cmp.Compare(a.Node, b.Node) }),
	}
	m := merger{rows: map[string]*Row{}, seen: map[string]map[string][]string{}, local: map[string]bool{}}
	for i := range r.Nodes {
		answer := &r.Nodes[i]
		facts, err := q.facts(*answer)
		if err != nil {
			answer.Error = cmp.Or(answer.Error, err.Error())
			r.Silent = append(r.Silent, Silence{answer.Node, answer.Error})
			if worse(q.Command, 1, r.ExitStatus) {
				r.ExitStatus = 1
			}
			continue
		}
		m.responded = append(m.responded, answer.Node)
		m.add(answer.Node, facts)
		if answer.ExitStatus != nil && worse(q.Command, *answer.ExitStatus, r.ExitStatus) {
			r.ExitStatus = *answer.ExitStatus
		}
	}
	for _, row := range m.rows {
		r.Rows = append(r.Rows, *row)
	}
	slices.SortFunc(r.Rows, func(a, b Row) int {
		return cmp.Or(slices.Compare(a.Subject, b.Subject), -cmp.Compare(len(a.Nodes), len(b.Nodes)), slices.Compare(a.Says, b.Says))
	})
	if notAsked > 0 && commands[q.Command].verdict && worse(q.Command, 1, r.ExitStatus) {
		r.ExitStatus = 1
	}
	if commands[q.Command].sameEverywhere {
		r.Disagreements = m.disagreements()
	}
	return r
}

// merger collects facts.
type merger struct {
	responded []string
	rows      map[string]*Row                // by subject and statement
	seen      map[string]map[string][]string // subject → statement → nodes
	local     map[string]bool                // by subject
}

func key(cells []string) string { return strings.Join(cells, "\x00") }

func (m *merger) add(node string, facts []fact) {
	for _, f := range facts {
		subject, says := key(f.subject), key(f.says)
		row := m.rows[subject+"\x01"+says]
		if row == nil {
			row = &Row{Subject: f.subject, Says: f.says, Sums: make([]uint64, len(f.counts))}
			m.rows[subject+"\x01"+says] = row
		}
		for i, n := range f.counts {
			row.Sums[i] += n
		}
		if m.seen[subject] == nil {
			m.seen[subject] = map[string][]string{}
		}
		m.local[subject] = m.local[subject] || f.local
		if !slices.Contains(m.seen[subject][says], node) { // a node with two identical facts counts once
			m.seen[subject][says] = append(m.seen[subject][says], node)
			row.Nodes = append(row.Nodes, node)
		}
	}
}

// disagreements describes each subject about which nodes disagree, or that some nodes do not know.
func (m *merger) disagreements() []string {
	list := []string{}
	for subject, statements := range m.seen {
		if m.local[subject] {
			continue
		}
		var versions []string
		missing := slices.Clone(m.responded)
		for says, nodes := range statements {
			versions = append(versions, fmt.Sprintf("%s (%s)", display(says), strings.Join(nodes, ", ")))
			missing = slices.DeleteFunc(missing, func(n string) bool { return slices.Contains(nodes, n) })
		}
		slices.Sort(versions)
		if len(missing) > 0 {
			versions = append(versions, fmt.Sprintf("missing (%s)", strings.Join(missing, ", ")))
		}
		if len(versions) > 1 {
			list = append(list, display(subject)+": "+strings.Join(versions, "; "))
		}
	}
	slices.Sort(list)
	return list
}

// display joins the cells that are not empty.
func display(key string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(key, "\x00"), func(s string) bool { return s == "" }), " ")
}
