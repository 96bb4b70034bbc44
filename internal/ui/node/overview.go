package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/ui"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const (
	maxChanges  = 200
	maxProblems = 200
	// maxRows is the maximum number of Services in an answer, and defaultRows is the default.
	maxRows     = 1000
	defaultRows = 100
)

// Overview is the answer to the question "overview".
type Overview struct {
	view.Header
	Time time.Time `json:"time"`
	// Verdict is well, warning or broken.
	Verdict  string            `json:"verdict"`
	Findings []finding.Finding `json:"findings"`
	// Agent and the following fields are absent if no agent responds.
	Agent    *view.Agent       `json:"agent,omitempty"`
	Node     *view.Node        `json:"node,omitempty"`
	Sources  []view.Source     `json:"sources,omitempty"`
	Totals   *view.Totals      `json:"totals,omitempty"`
	Problems view.Some[string] `json:"problems"`
	Stages   []Stage           `json:"stages"`
	Measured Measured          `json:"measured"`
	Services Rows              `json:"services"`
}

// Measured describes the readings of the counters, and the node's traffic.
type Measured struct {
	// Since is when the command started reading the counters. Error is the reason why the counters cannot be read.
	Since time.Time `json:"since"`
	Error string    `json:"error,omitempty"`
	// Left counts the virtual servers and endpoints whose traffic is not recorded, because there are too many.
	Left int             `json:"left,omitempty"`
	Now  inspect.Traffic `json:"now"`
	Hour []Minute        `json:"hour"`
}

// Rows are the selected Services.
type Rows struct {
	Count    int   `json:"count"`
	Matching int   `json:"matching"`
	Items    []Row `json:"items"`
}

// Row describes one Service.
type Row struct {
	Service   string             `json:"service"`
	Kinds     []view.Kind        `json:"kinds"`
	Addresses []string           `json:"addresses"`
	State     view.FrontendState `json:"state"`
	Ready     int                `json:"ready"`
	Endpoints int                `json:"endpoints"`
	Draining  int                `json:"draining"`
	Problems  []string           `json:"problems"`
	view.Connections
	inspect.Traffic
	Hour []Minute `json:"hour"`

	servers []kernel.ServerKey
}

func (n *Node) overview(ctx context.Context, q ui.Question) (Overview, error) {
	limit := defaultRows
	if q.Limit != "" {
		parsed, err := strconv.Atoi(q.Limit)
		if err != nil || parsed < 1 || parsed > maxRows {
			return Overview{}, fmt.Errorf("limit %q: use 1 to %d", q.Limit, maxRows)
		}
		limit = parsed
	}
	order, known := orders[cmp.Or(q.Sort, "connections")]
	if !known {
		return Overview{}, fmt.Errorf("sort %q: use connections, active, in, out, name or state", q.Sort)
	}
	all, err := n.everything(ctx)
	if err != nil {
		return Overview{}, err
	}
	o := Overview{Header: view.HeaderOf("Overview"), Time: n.now(), Findings: view.Findings(all.view, all.silence, view.Unread), Stages: []Stage{},
		Problems: view.Some[string]{Items: []string{}}}
	o.Verdict = finding.Verdict(o.Findings)
	if v := all.view; v != nil {
		o.Agent, o.Node, o.Sources, o.Totals = &v.Agent, &v.Node, v.Sources, &v.Totals
		o.Problems = view.Some[string]{Count: len(v.Problems), Items: v.Problems[:min(len(v.Problems), maxProblems)]}
		if v.History != nil {
			o.Stages = stages(v.History.Entries)
		}
	}
	n.addTraffic(&o, all.services)
	o.Services.choose(q.Filter, order, limit, n)
	return o, nil
}

// addTraffic adds a row with the traffic of each Service, and the total traffic of the node.
func (n *Node) addTraffic(o *Overview, services inspect.ServiceList) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var total [minutes]Minute
	for _, s := range services.Items {
		row := rowOf(s)
		for _, key := range row.servers {
			t := inspect.TrafficOf(n.before[key].Counters, n.latest[key].Counters, n.seconds)
			if _, known := n.before[key]; known {
				row.Traffic.Add(t)
			}
			for i, m := range n.hour.of(place{server: key}) {
				total[i].add(m)
			}
		}
		o.Measured.Now.Add(row.Traffic)
		o.Services.Items = append(o.Services.Items, row)
	}
	o.Measured.Since, o.Measured.Error, o.Measured.Left, o.Measured.Hour = n.started, n.unread, n.hour.left, total[:]
}

func rowOf(s view.Service) Row {
	row := Row{Service: s.ID(), Kinds: []view.Kind{}, Addresses: []string{}, State: view.Served, Problems: append([]string{}, s.Problems...)}
	seen := map[kernel.ServerKey]bool{}
	endpoints, ready, draining := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range s.Frontends {
		if !slices.Contains(row.Kinds, f.Kind) {
			row.Kinds = append(row.Kinds, f.Kind)
		}
		row.Addresses = append(row.Addresses, f.Address.String()+"/"+f.Protocol)
		if f.State != view.Served && row.State == view.Served {
			row.State = f.State
		}
		for _, e := range f.Endpoints {
			at := e.Address.String()
			endpoints[at] = true
			switch {
			case e.State.GetsConnections(), e.State == view.UnknownEndpoint:
				ready[at] = true
			case e.State == view.Draining:
				draining[at] = true
			}
		}
		key := inspect.ServerOf(f)
		if seen[key] || !f.Ours() {
			continue
		}
		seen[key] = true
		row.servers = append(row.servers, key)
		if f.Connections != nil {
			row.Active += f.Connections.Active
			row.Inactive += f.Connections.Inactive
		}
	}
	row.Endpoints, row.Ready, row.Draining = len(endpoints), len(ready), len(draining)
	return row
}

// orders contains the sort orders of rows. Rows that compare equal are sorted by name.
var orders = map[string]func(a, b Row) int{
	"connections": func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Traffic.Connections, a.Traffic.Connections), cmp.Compare(b.Active, a.Active))
	},
	"active": func(a, b Row) int { return cmp.Compare(b.Active, a.Active) },
	"in":     func(a, b Row) int { return cmp.Compare(b.BytesIn, a.BytesIn) },
	"out":    func(a, b Row) int { return cmp.Compare(b.BytesOut, a.BytesOut) },
	"name":   func(a, b Row) int { return 0 },
	"state": func(a, b Row) int {
		return cmp.Or(-compare(a.State != view.Served, b.State != view.Served), cmp.Compare(len(b.Problems), len(a.Problems)), strings.Compare(string(a.State), string(b.State)))
	},
}

func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// choose filters, sorts and limits the rows, and adds the traffic of the last hour to the selected rows.
func (r *Rows) choose(filter string, order func(a, b Row) int, limit int, n *Node) {
	r.Count = len(r.Items)
	words := strings.Fields(strings.ToLower(filter))
	r.Items = slices.DeleteFunc(r.Items, func(row Row) bool { return !row.matches(words) })
	r.Matching = len(r.Items)
	slices.SortFunc(r.Items, func(a, b Row) int { return cmp.Or(order(a, b), strings.Compare(a.Service, b.Service)) })
	r.Items = append([]Row{}, r.Items[:min(limit, len(r.Items))]...)
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range r.Items {
		var total [minutes]Minute
		for _, key := range r.Items[i].servers {
			for m, minute := range n.hour.of(place{server: key}) {
				total[m].add(minute)
			}
		}
		r.Items[i].Hour = total[:]
	}
}

// matches reports whether each word is in the name, a kind, an address, the state or a problem.
func (r Row) matches(words []string) bool {
	text := strings.ToLower(fmt.Sprint(r.Service, " ", r.Kinds, " ", r.Addresses, " ", r.State, " ", r.Problems))
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}
