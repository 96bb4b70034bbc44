package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

type said struct {
	facts     []fact
	findings  []finding.Finding
	unchecked []string
	// partial is true if the node's answer lacks subjects that may exist there.
	partial bool
}

func (q Question) read(a Answer) (said, error) {
	if a.Error != "" {
		return said{}, errors.New(a.Error)
	}
	s, err := commands[q.Command].read(q, a.Document)
	if err != nil {
		return said{}, fmt.Errorf("the agent's answer is not the expected document (%w); check whether the versions differ", err)
	}
	return s, nil
}

func readServices(q Question, document []byte) (s said, err error) {
	var list inspect.ServiceList
	if err := json.Unmarshal(document, &list); err != nil {
		return s, err
	}
	s.unchecked, s.partial = list.Unknown, !list.Agent
	for _, service := range list.Items {
		if !q.about(service.Namespace) {
			continue
		}
		for _, f := range service.Frontends {
			s.facts = append(s.facts, frontendFact(service, f, len(list.Unknown) == 0))
		}
		if len(service.Frontends) == 0 {
			s.facts = append(s.facts, fact{
				subject: []string{service.Namespace, service.Name, "", "", ""}, says: []string{"", "", "NotServed"}, counts: []uint64{0, 0},
			})
		}
	}
	return s, nil
}

// frontendFact returns the state of a frontend. If complete is true, a frontend without a number of connections has none.
func frontendFact(s view.Service, f view.Frontend, complete bool) fact {
	taking, local := 0, f.Policy == "Local" || f.Kind == view.Unknown
	for _, e := range f.Endpoints {
		switch {
		case e.State.GetsConnections():
			taking++
		case e.State == view.Excluded: // topology hints differ between zones and nodes
			local = true
		}
	}
	out := fact{
		subject: []string{s.Namespace, s.Name, f.Port, string(f.Kind), frontendAddress(f.Kind, f.Address, f.Protocol)},
		says:    []string{f.Scheduler, fmt.Sprintf("%d/%d", taking, len(f.Endpoints)), string(f.State)},
		local:   local,
	}
	switch {
	case f.Connections != nil:
		out.counts = []uint64{f.Connections.Active, f.Connections.Inactive}
	case complete:
		out.counts = []uint64{0, 0}
	}
	return out
}

func readTop(q Question, document []byte) (s said, err error) {
	var list inspect.TopList
	if err := json.Unmarshal(document, &list); err != nil {
		return s, err
	}
	if list.Kind != "TopList" {
		return s, errors.New("it has no measurement")
	}
	for _, e := range list.Items {
		if q.about(e.Namespace) {
			s.facts = append(s.facts, fact{
				subject: []string{e.Namespace, e.Name, e.Port, string(e.Kind), frontendAddress(e.Kind, e.Address, e.Protocol)},
				counts: []uint64{
					rounded(e.Traffic.Connections), rounded(e.Packets), rounded(e.BytesIn), rounded(e.BytesOut), e.Active, e.Inactive, uint64(max(0, e.Draining)),
				},
			})
		}
	}
	s.unchecked = list.Unknown
	return s, nil
}

// rounded returns a rate as a whole number. It limits the value, because an answer may contain any number.
func rounded(rate float64) uint64 {
	return uint64(math.Round(min(max(rate, 0), 1e15)))
}

// frontendAddress formats the address of a frontend. It omits the IP address of node ports, which differs between nodes.
func frontendAddress(kind view.Kind, address netip.AddrPort, protocol string) string {
	if kind == view.NodePort {
		return fmt.Sprintf(":%d/%s", address.Port(), protocol)
	}
	return address.String() + "/" + protocol
}

func readConnections(q Question, document []byte) (s said, err error) {
	var list inspect.ConnectionList
	if err := json.Unmarshal(document, &list); err != nil {
		return s, err
	}
	s.unchecked = list.Unknown
	if n := len(list.Items); q.Namespace != "" && !list.Agent && n > 0 {
		s.unchecked = append(slices.Clone(s.unchecked), fmt.Sprintf("%d connections, which may belong to namespace %s or another: no agent responds; use -A to see them", n, q.Namespace))
	}
	for _, c := range list.Items {
		if !q.about(c.Namespace) {
			continue
		}
		client, state := c.Client.String(), c.State
		if c.Affinity {
			client, state = c.Client.Addr().String(), "AFFINITY"
		}
		s.facts = append(s.facts, fact{
			subject: []string{c.Namespace, c.Name, c.Protocol, client, c.Virtual.String(), c.Endpoint.String()},
			says:    []string{c.Pod, state, strconv.FormatUint(c.Expires, 10) + "s"},
		})
	}
	return s, nil
}

func readStatus(_ Question, document []byte) (s said, err error) {
	var status inspect.Status
	if err := json.Unmarshal(document, &status); err != nil {
		return s, err
	}
	state, version := finding.Well, ""
	switch {
	case status.View == nil && len(status.Findings) == 0:
		return s, errors.New("it contains neither an agent's state nor a finding")
	case status.View == nil && finding.Verdict(status.Findings) != string(finding.Broken): // the agent may be running
		state = "unknown"
	case len(status.Findings) > 0:
		state = "not well"
	}
	if status.View != nil {
		version = status.View.Node.Version
	}
	s.facts = []fact{{subject: []string{state}, says: []string{version}}}
	s.findings, s.unchecked = status.Findings, status.Unknown
	return s, nil
}

// readDoctor does not use the type in package doctor, which builds only for Linux.
func readDoctor(_ Question, document []byte) (s said, err error) {
	var report struct {
		Verdict   string            `json:"verdict"`
		Findings  []finding.Finding `json:"findings"`
		Paths     uint64            `json:"paths"`
		Connected uint64            `json:"connected"`
		Unchecked []string          `json:"unchecked"`
	}
	if err := json.Unmarshal(document, &report); err != nil {
		return s, err
	}
	if report.Verdict == "" {
		return s, errors.New("it has no verdict")
	}
	return said{
		facts:    []fact{{subject: []string{report.Verdict}, counts: []uint64{report.Paths, report.Connected}}},
		findings: report.Findings, unchecked: report.Unchecked,
	}, nil
}

func readPreflight(_ Question, document []byte) (s said, err error) {
	var list struct {
		Kind  string            `json:"kind"`
		Items []finding.Finding `json:"items"`
	}
	if err := json.Unmarshal(document, &list); err != nil {
		return s, err
	}
	if list.Kind != "FindingList" {
		return s, errors.New("it contains no list of findings")
	}
	return said{facts: []fact{{subject: []string{finding.Verdict(list.Items)}}}, findings: list.Items}, nil
}

func readPlan(_ Question, document []byte) (s said, err error) {
	var plan inspect.PlanJSON
	if err := json.Unmarshal(document, &plan); err != nil {
		return s, err
	}
	if plan.Kind != "Plan" {
		return s, errors.New("it has no plan")
	}
	for _, phase := range plan.Phases {
		for _, operation := range phase.Operations {
			s.facts = append(s.facts, fact{subject: []string{phase.Phase, operation}})
		}
	}
	return s, nil
}

func readCleanup(_ Question, document []byte) (s said, err error) {
	var c inspect.Cleanup
	if err := json.Unmarshal(document, &c); err != nil {
		return s, err
	}
	if c.Kind != "Cleanup" {
		return s, errors.New("it contains no cleanup result")
	}
	add := func(result string, operations ...string) {
		for _, o := range operations {
			s.facts = append(s.facts, fact{subject: []string{o}, says: []string{result}})
		}
	}
	add("to be removed", c.ToRemove...)
	add("removed", c.Removed...)
	for _, f := range c.Failed {
		add("failed: "+f.Error, f.Operation)
	}
	if stay := slices.Concat(c.ForeignAddresses, c.ForeignServers, c.Kept); len(stay) > 0 {
		s.findings = finding.One(finding.Notice, "cleanup", "other programs' objects are kept", stay, "nothing to do")
	}
	if c.Refused != "" {
		s.findings = append(s.findings, finding.New(finding.Warning, "cleanup", "without --dry-run it would refuse", []string{c.Refused}, "resolve the problem shown above"))
	}
	return s, nil
}

func readHistory(_ Question, document []byte) (s said, err error) {
	var list inspect.HistoryList
	if err := json.Unmarshal(document, &list); err != nil {
		return s, err
	}
	if list.Kind != "HistoryList" {
		return s, errors.New("it has no history")
	}
	for _, e := range list.Items {
		cells := inspect.HistoryCells(e)
		s.facts = append(s.facts, fact{subject: cells[:3], says: append(cells[3:], inspect.Result(e))})
	}
	s.unchecked = list.Unknown
	return s, nil
}

func readVersion(_ Question, document []byte) (s said, err error) {
	var v struct{ Version, Commit, Go, Platform string }
	if err := json.Unmarshal(document, &v); err != nil {
		return s, err
	}
	if v.Version == "" {
		return s, errors.New("it has no version")
	}
	return said{facts: []fact{{subject: []string{v.Version, v.Commit, v.Go, v.Platform}}}}, nil
}

func readExplanations(_ Question, document []byte) (s said, err error) {
	var list struct {
		Unknown []string              `json:"unknown"`
		Items   []explain.Explanation `json:"items"`
	}
	if err := json.Unmarshal(document, &list); err != nil {
		return s, err
	}
	s.unchecked = list.Unknown
	for _, e := range list.Items {
		s.facts = append(s.facts, fact{
			subject: []string{e.Service, e.Kind, frontendAddress(view.Kind(e.Kind), e.Address, e.Protocol)},
			says:    []string{string(e.Verdict), strings.Join(e.Reasons, "; ")},
		})
	}
	return s, nil
}
