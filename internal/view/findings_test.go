package view

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestNodeProblemsAreFindings: an agent with a node problem is unhealthy, and a Service's problem is not a node problem.
func TestNodeProblemsAreFindings(t *testing.T) {
	v := &View{Time: time.Unix(0, 0), Agent: Agent{Synced: true}, Problems: []string{"Service shop/api: not served"}}
	if found := Findings(v, "", Unread); len(found) > 0 {
		t.Fatalf("got findings %v for a problem of a Service, want none", found)
	}
	before := v.Problems
	v.AddNodeProblems([]model.Problem{
		{Object: model.NodeRef("node-1"), Field: "--healthz-bind-address", Value: "0.0.0.0:10256", Reason: "another program uses this port", Remedy: "stop it"},
		{Object: model.NodeRef("node-1"), Field: "Services", Reason: "must be fewer"},
	})
	found := Findings(v, "", Unread)
	want := []string{
		`this node: --healthz-bind-address "0.0.0.0:10256": another program uses this port; stop it`,
		"this node: Services: must be fewer; fix the cause named in the problem",
	}
	for i, f := range found {
		if f.Severity != finding.Warning || f.String() != want[i] {
			t.Errorf("%s %q, want %q", f.Severity, f, want[i])
		}
	}
	if len(found) != len(want) || len(v.Problems) != 3 || !slices.Equal(v.OtherProblems(), before) || len(before) != 1 {
		t.Errorf("%v, problems %q", found, v.Problems)
	}
}

// TestSnapshotThatFails: an agent that cannot use its snapshot is unhealthy.
func TestSnapshotThatFails(t *testing.T) {
	v := &View{Agent: Agent{Synced: true}, Snapshot: &Snapshot{File: "/var/lib/kube-ipvs/last", Error: "disk full"}}
	if found := Findings(v, "", Unread); len(found) != 1 || !strings.Contains(found[0].String(), "disk full") {
		t.Error(found)
	}
}

// TestSilentAgent: without an agent, the kernel keeps forwarding only if it has virtual servers.
func TestSilentAgent(t *testing.T) {
	for servers, want := range map[int]string{3: "keeps forwarding", 0: "no Service works", Unread: "see its log"} {
		found := Findings(nil, "no agent", servers)
		if len(found) != 1 || !strings.Contains(found[0].Remedy, want) || servers != 3 && strings.Contains(found[0].Remedy, "forwarding") {
			t.Errorf("%d virtual servers: %v", servers, found)
		}
	}
}
