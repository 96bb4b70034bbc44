package view

import (
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// Unread means that the virtual servers were not read.
const Unread = -1

// Findings returns the reasons why this node's Services may not follow the cluster, most serious first. Problems of individual Services are
// not included. If the agent did not respond, v is nil, silence contains the reason, and servers is the number of virtual servers in the kernel, or
// Unread.
func Findings(v *View, silence string, servers int) []finding.Finding {
	if v == nil {
		remedy := "if the agent is not running, start it; otherwise see its log"
		switch {
		case servers > 0:
			remedy += ". Meanwhile, the kernel keeps forwarding to its current endpoints"
		case servers == 0:
			remedy += ". Meanwhile, no Service works on this node: the kernel has no virtual servers"
		}
		return finding.One(finding.Broken, "agent", silence, nil, remedy)
	}
	found := []finding.Finding{}
	add := func(s finding.Severity, subject, problem string, evidence []string, remedy string) {
		found = append(found, finding.New(s, subject, problem, evidence, remedy))
	}
	if why := v.Node.ConfigError; why != "" {
		add(finding.Warning, "configuration", "not usable; the previous settings remain in effect", []string{why},
			"correct "+v.Node.ConfigFile+"; `kube-ipvs config validate` lists every mistake")
	}
	for _, p := range v.NodeProblems {
		add(finding.Warning, "this node", p.Problem, nil, p.Remedy)
	}
	if s := v.Snapshot; s != nil && s.Error != "" {
		add(finding.Warning, "snapshot "+s.File, "not usable; this node cannot serve Services if it boots without the API server", []string{s.Error},
			"fix the cause of the error")
	}
	for _, s := range v.Sources {
		if why := s.problem(v.Time); why != "" {
			add(finding.Broken, "source "+s.Name, "stale; this node does not follow changes in the cluster", []string{why},
				"check that this node can reach the API server at its configured address, which must not depend on a Service")
		}
	}
	if v.Agent.Busy {
		add(finding.Warning, "agent", "a sync is taking a long time; this is the agent's state as of "+v.asOf(), nil,
			"wait for the sync to end; if it does not, see the agent's log")
	}
	if !v.Agent.Synced {
		add(finding.Broken, "agent", "initial lists incomplete; nothing is written until they are complete", nil,
			"check that the agent can reach the API server and is allowed to list Services, EndpointSlices and Nodes")
	}
	if why := v.Agent.Error; why != "" {
		evidence := []string{why}
		if at := v.Agent.RetryAt; at != nil {
			evidence = append(evidence, "next retry at "+at.UTC().Format(time.RFC3339))
		}
		add(finding.Broken, "agent", "the last sync failed; changes in the cluster may not be in the kernel", evidence,
			"fix the cause of the error; the agent retries automatically")
	}
	finding.Sort(found)
	return found
}

// Missing lists what an earlier view does not show. It is empty if the view is current.
func (v *View) Missing() []string {
	if v == nil || !v.Agent.Busy {
		return []string{}
	}
	return []string{"changes since " + v.asOf() + ": the agent is busy with a long sync"}
}

func (v *View) asOf() string { return v.Time.UTC().Format(time.RFC3339) }
