package fleet

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const maxStatements = 100_000

// Merger merges answers as they arrive. It stores each distinct statement once, with the numbers of its nodes.
type Merger struct {
	q Question
	// keep is true if the report includes the complete answers.
	keep bool

	report    Report
	numbered  []string // the nodes that responded, in the order of their answers
	subjects  map[string]*subject
	findings  map[string]*found
	unchecked map[string]*nodeSet
	// partial are the nodes whose answers may lack subjects.
	partial nodeSet
	// statements counts the entries of the maps.
	statements int
}

type subject struct {
	rows map[string]*row
	// local is true if nodes may answer differently.
	local bool
}

type row struct {
	fact
	nodes nodeSet
}

type fact struct {
	subject, says []string
	// counts is nil if the node could not count.
	counts []uint64
	// local is true if nodes may answer differently about the subject.
	local bool
}

// NewMerger returns a merger for the answers to a question. If keep is true, the report contains the complete answers.
func NewMerger(q Question, keep bool) *Merger {
	return &Merger{
		q: q, keep: keep, report: Report{Command: q.Command},
		subjects: map[string]*subject{}, findings: map[string]*found{}, unchecked: map[string]*nodeSet{},
	}
}

// Skip records the nodes that are not queried because agents do not run there.
func (m *Merger) Skip(skipped []Skipped) { m.report.Skipped = skipped }

// Add adds the answer of a node.
func (m *Merger) Add(answer Answer) {
	said, err := m.q.read(answer)
	if answer.Error == "" && err != nil {
		answer.Error = err.Error()
	}
	messages := answer.Messages
	var short bytes.Buffer
	if !m.keep || json.Compact(&short, answer.Document) != nil {
		answer.Document, answer.Messages = nil, nil
	} else {
		answer.Document = slices.Clip(short.Bytes())
	}
	m.report.Nodes = append(m.report.Nodes, answer)
	if err != nil {
		return
	}
	node := len(m.numbered)
	m.numbered = append(m.numbered, answer.Node)
	if said.partial {
		m.partial.add(node)
	}
	for _, f := range said.facts {
		m.addFact(node, f)
	}
	for _, f := range said.findings {
		m.addFinding(node, f)
	}
	m.addFailure(node, answer.ExitStatus, messages)
	for _, what := range said.unchecked {
		if add(m, m.unchecked, what, func() *nodeSet { return &nodeSet{} }) {
			m.unchecked[what].add(node)
		}
	}
	if answer.ExitStatus != nil && worse(m.q.Command, *answer.ExitStatus, m.report.ExitStatus) {
		m.report.ExitStatus = *answer.ExitStatus
	}
}

// addFailure adds what a failed command wrote to stderr, unless its document contains the verdict.
func (m *Merger) addFailure(node int, status *int, messages []string) {
	if !commands[m.q.Command].verdictInStatus && status != nil && *status != 0 && len(messages) > 0 {
		m.addFinding(node, finding.New(finding.Warning, m.q.Command, fmt.Sprintf("failed with exit status %d", *status), messages, "resolve the problem shown above"))
	}
}

func add[V any](m *Merger, to map[string]V, key string, empty func() V) bool {
	if _, exists := to[key]; exists {
		return true
	}
	if m.statements == maxStatements {
		m.report.LeftOut++
		return false
	}
	m.statements++
	to[key] = empty()
	return true
}

func key(cells []string) string { return strings.Join(cells, "\x00") }

func (m *Merger) addFact(node int, f fact) {
	about := key(f.subject)
	s := m.subjects[about]
	if s == nil {
		s = &subject{rows: map[string]*row{}}
	}
	says := key(f.says)
	if !add(m, s.rows, says, func() *row {
		return &row{fact: fact{subject: f.subject, says: f.says}}
	}) {
		return
	}
	m.subjects[about] = s
	s.local = s.local || f.local
	r := s.rows[says]
	r.nodes.add(node)
	if r.counts == nil && f.counts != nil {
		r.counts = make([]uint64, len(f.counts))
	}
	for i, n := range f.counts {
		r.counts[i] += n
	}
}

// Report returns the result. stopped is the reason if the command did not wait for all answers. The merger must not
// be used after this call.
func (m *Merger) Report(notAsked int, stopped string) Report {
	r := m.report
	r.Header = view.Header{APIVersion: "fleet.kube-ipvs.io/v1", Kind: "FleetReport"}
	r.NotAsked, r.Stopped = notAsked, stopped
	r.Rows, r.Findings, r.Unchecked, r.Disagreements, r.Silent = []Row{}, []Finding{}, []Unchecked{}, []string{}, []Silence{}
	r.Nodes = append([]Answer{}, r.Nodes...)
	slices.SortFunc(r.Nodes, func(a, b Answer) int { return cmp.Compare(a.Node, b.Node) })
	for _, answer := range r.Nodes {
		if answer.Error != "" {
			r.Silent = append(r.Silent, Silence{answer.Node, answer.Error})
		}
	}
	names := namer{m.numbered, map[string][]string{}}
	for _, s := range m.subjects {
		for _, row := range s.rows {
			r.Rows = append(r.Rows, Row{row.subject, row.says, row.counts, names.of(row.nodes)})
		}
	}
	slices.SortFunc(r.Rows, func(a, b Row) int {
		if commands[r.Command].busiest && a.Sums[0] != b.Sums[0] {
			return cmp.Compare(b.Sums[0], a.Sums[0])
		}
		return cmp.Or(slices.Compare(a.Subject, b.Subject), -cmp.Compare(len(a.Nodes), len(b.Nodes)), slices.Compare(a.Says, b.Says))
	})
	for _, f := range m.findings {
		r.Findings = append(r.Findings, f.report(names))
	}
	slices.SortFunc(r.Findings, compareFindings)
	for what, nodes := range m.unchecked {
		r.Unchecked = append(r.Unchecked, Unchecked{what, names.of(*nodes)})
	}
	slices.SortFunc(r.Unchecked, func(a, b Unchecked) int { return cmp.Compare(a.What, b.What) })
	if commands[r.Command].sameEverywhere {
		r.Disagreements = m.disagreements(names)
	}
	if r.incomplete() && worse(r.Command, 1, r.ExitStatus) {
		r.ExitStatus = 1
	}
	if r.Command == "preflight" {
		r.Verdict = Go
		if r.ExitStatus != 0 || len(r.broken()) > 0 {
			r.Verdict = NoGo
		}
	}
	return r
}

func (m *Merger) disagreements(names namer) []string {
	list := []string{}
	for about, s := range m.subjects {
		if s.local {
			continue
		}
		var versions []string
		known := slices.Clone(m.partial)
		for says, row := range s.rows {
			versions = append(versions, fmt.Sprintf("%s (%s)", display(says), some(names.of(row.nodes), ", ")))
			known.addAll(row.nodes)
		}
		slices.Sort(versions)
		if missing := known.others(len(m.numbered)); missing.count() > 0 {
			versions = append(versions, fmt.Sprintf("missing (%s)", some(names.of(missing), ", ")))
		}
		if len(versions) > 1 {
			list = append(list, display(about)+": "+strings.Join(versions, "; "))
		}
	}
	slices.Sort(list)
	return list
}

func display(key string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(key, "\x00"), func(s string) bool { return s == "" }), " ")
}

// nodeSet is a bit set of node numbers, which saves memory in clusters with many nodes.
type nodeSet []uint64

func (s *nodeSet) add(node int) {
	for len(*s) <= node/64 {
		*s = append(*s, 0)
	}
	(*s)[node/64] |= 1 << (node % 64)
}

func (s *nodeSet) addAll(other nodeSet) {
	for i, word := range other {
		if i == len(*s) {
			*s = append(*s, 0)
		}
		(*s)[i] |= word
	}
}

func (s nodeSet) has(node int) bool { return node/64 < len(s) && s[node/64]&(1<<(node%64)) != 0 }

func (s nodeSet) count() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

func (s nodeSet) others(limit int) (out nodeSet) {
	for node := range limit {
		if !s.has(node) {
			out.add(node)
		}
	}
	return out
}

// namer converts node sets to lists of names. Equal sets share one list.
type namer struct {
	numbered []string
	lists    map[string][]string
}

func (n namer) of(s nodeSet) []string {
	var id []byte
	for _, word := range s {
		id = binary.LittleEndian.AppendUint64(id, word)
	}
	list, known := n.lists[string(id)]
	if !known {
		list = []string{}
		for node, name := range n.numbered {
			if s.has(node) {
				list = append(list, name)
			}
		}
		slices.Sort(list)
		n.lists[string(id)] = list
	}
	return list
}
