package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// facts returns the facts in the answer of a node.
func (q Question) facts(a Answer) ([]fact, error) {
	if a.Error != "" {
		return nil, errors.New(a.Error)
	}
	facts, err := commands[q.Command].read(q, a.Document)
	if err != nil {
		return nil, fmt.Errorf("the agent's answer is not the expected document (%w); do the versions differ?", err)
	}
	return facts, nil
}

func readServices(q Question, document []byte) (facts []fact, err error) {
	var list inspect.ServiceList
	if err := json.Unmarshal(document, &list); err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		if !q.about(s.Namespace) {
			continue
		}
		for _, f := range s.Frontends {
			facts = append(facts, frontendFact(s, f))
		}
		if len(s.Frontends) == 0 {
			facts = append(facts, fact{subject: []string{s.Namespace, s.Name, "", "", ""}, says: []string{"", "", "NotServed"}, counts: []uint64{0, 0}})
		}
	}
	return facts, nil
}

func frontendFact(s view.Service, f view.Frontend) fact {
	taking, local := 0, f.Policy == "Local"
	for _, e := range f.Endpoints {
		switch e.State {
		case view.Ready, view.SlowStart, view.Serving:
			taking++
		case view.Excluded: // topology hints differ between zones and nodes
			local = true
		}
	}
	out := fact{
		subject: []string{s.Namespace, s.Name, f.Port, string(f.Kind), frontendAddress(f.Kind, f.Address, f.Protocol)},
		says:    []string{f.Scheduler, fmt.Sprintf("%d/%d", taking, len(f.Endpoints)), string(f.State)},
		counts:  []uint64{0, 0}, local: local,
	}
	if f.Connections != nil {
		out.counts = []uint64{f.Connections.Active, f.Connections.Inactive}
	}
	return out
}

// frontendAddress returns the address of a frontend. For node ports it leaves the IP address out, because each node has its own.
func frontendAddress(kind view.Kind, address netip.AddrPort, protocol string) string {
	if kind == view.NodePort {
		return fmt.Sprintf(":%d/%s", address.Port(), protocol)
	}
	return address.String() + "/" + protocol
}

func readConnections(q Question, document []byte) (facts []fact, err error) {
	var list inspect.ConnectionList
	if err := json.Unmarshal(document, &list); err != nil {
		return nil, err
	}
	for _, c := range list.Items {
		if !q.about(c.Namespace) {
			continue
		}
		client, state := c.Client.String(), c.State
		if c.Affinity {
			client, state = c.Client.Addr().String(), "AFFINITY"
		}
		facts = append(facts, fact{
			subject: []string{c.Namespace, c.Name, c.Protocol, client, c.Virtual.String(), c.Endpoint.String()},
			says:    []string{c.Pod, state, strconv.FormatUint(c.Expires, 10) + "s"},
		})
	}
	return facts, nil
}

func readStatus(_ Question, document []byte) ([]fact, error) {
	var status inspect.Status
	if err := json.Unmarshal(document, &status); err != nil {
		return nil, err
	}
	version := ""
	if status.View != nil {
		version = status.View.Node.Version
	}
	switch {
	case len(status.Unwell) > 0:
		return []fact{{subject: []string{"not well"}, says: []string{version, strings.Join(status.Unwell, "; ")}}}, nil
	case status.View == nil:
		return []fact{{subject: []string{"unknown"}, says: []string{version, status.Silence}}}, nil
	}
	return []fact{{subject: []string{"well"}, says: []string{version, ""}}}, nil
}

// readDoctor reads the document of doctor. It cannot import package doctor, which builds only for Linux.
func readDoctor(_ Question, document []byte) ([]fact, error) {
	var report struct {
		Verdict  string `json:"verdict"`
		Findings []struct {
			Severity string `json:"severity"`
			Subject  string `json:"subject"`
			Problem  string `json:"problem"`
		} `json:"findings"`
		Unchecked []string `json:"unchecked"`
	}
	if err := json.Unmarshal(document, &report); err != nil {
		return nil, err
	}
	if report.Verdict == "" {
		return nil, errors.New("it has no verdict")
	}
	facts := []fact{{subject: []string{"verdict", ""}, says: []string{report.Verdict}}}
	for _, f := range report.Findings {
		facts = append(facts, fact{subject: []string{f.Severity, f.Subject}, says: []string{f.Problem}})
	}
	for _, u := range report.Unchecked {
		what, why, _ := strings.Cut(u, ": ")
		facts = append(facts, fact{subject: []string{"not checked", what}, says: []string{why}})
	}
	return facts, nil
}

func readExplanations(_ Question, document []byte) (facts []fact, err error) {
	var list struct {
		Items []explain.Explanation `json:"items"`
	}
	if err := json.Unmarshal(document, &list); err != nil {
		return nil, err
	}
	for _, e := range list.Items {
		facts = append(facts, fact{
			subject: []string{e.Service, e.Kind, frontendAddress(view.Kind(e.Kind), e.Address, e.Protocol)},
			says:    []string{string(e.Verdict), strings.Join(e.Reasons, "; ")},
		})
	}
	return facts, nil
}
