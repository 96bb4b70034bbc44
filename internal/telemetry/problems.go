package telemetry

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// nodeProblems contains the problems of this node that are not in the loop's Reports, by field.
type nodeProblems struct {
	node   string
	events *events // nil without an API server
	count  prometheus.Gauge

	mu      sync.Mutex
	byField map[string]model.Problem
}

func newNodeProblems(node string, e *events, m *metrics) *nodeProblems {
	return &nodeProblems{
		node: node, events: e, count: m.problems.WithLabelValues(kindLabel(model.KindNode)), byField: map[string]model.Problem{},
	}
}

func (n *nodeProblems) set(p model.Problem) {
	p.Object = model.NodeRef(n.node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.byField[p.Field]; !known {
		n.count.Inc()
	}
	n.byField[p.Field] = p
	if n.events != nil {
		n.events.enqueue(notice{topic: aboutNode, problem: p})
	}
}

func (n *nodeProblems) clear(field string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, known := n.byField[field]
	if !known {
		return
	}
	delete(n.byField, field)
	n.count.Dec()
	if n.events != nil {
		n.events.enqueue(notice{topic: aboutNode, problem: p, resolved: true})
	}
}

// SetProblem adds a problem of this node that is not in the loop's Reports. It replaces an earlier problem in the same field.
func (t *Telemetry) SetProblem(p model.Problem) { t.problems.set(p) }

// ClearProblem removes a problem added with SetProblem.
func (t *Telemetry) ClearProblem(field string) { t.problems.clear(field) }

// Problems returns the problems of this node that are not in the loop's Reports, sorted by field.
func (t *Telemetry) Problems() (list []model.Problem) {
	t.problems.mu.Lock()
	defer t.problems.mu.Unlock()
	for _, field := range slices.Sorted(maps.Keys(t.problems.byField)) {
		list = append(list, t.problems.byField[field])
	}
	return list
}
