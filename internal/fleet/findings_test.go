package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

func diagnosis(verdict, unchecked string, findings ...string) string {
	return fmt.Sprintf(`{"verdict": "%s", "paths": 9, "connected": 2, "findings": [%s], "unchecked": [%s]}`, verdict, strings.Join(findings, ","), unchecked)
}

func full(percent int, evidence string) string {
	return fmt.Sprintf(`{"severity": "warning", "subject": "conntrack", "problem": "%d %% full", "evidence": ["%s"], "remedy": "raise the limit"}`, percent, evidence)
}

const drops = `{"severity": "broken", "subject": "firewall", "problem": "a rule drops every packet",
	"evidence": ["IPv4: -j DROP\n-A INPUT"], "remedy": "delete the rule"}`

// TestFindingsKeepTheirEvidence: nodes with the same problem share a finding. Each piece of evidence lists its nodes.
func TestFindingsKeepTheirEvidence(t *testing.T) {
	answers := []Answer{
		answer("node-1", diagnosis("broken", `"processes: not visible from here"`, drops, full(91, "9100 of 10000")), 2),
		answer("node-2", diagnosis("broken", `"processes: not visible from here", "clock: EPERM"`, drops), 2),
		answer("node-3", diagnosis("warning", `"processes: not visible from here"`, full(94, "9400 of 10000")), 1),
	}
	for i := range 6 {
		answers = append(answers, answer(fmt.Sprintf("other-%d", i), diagnosis("warning", "", full(95, fmt.Sprintf("%d of 10000", 9500+i))), 1))
	}
	r := merge(Question{Command: "doctor"}, answers, 0)
	want := `VERDICT   PATHS   CONNECTED   NODES
broken    18      4           node-1,node-2
warning   63      14          node-3,other-0,other-1,other-2,other-3 and 2 more
broken   firewall: a rule drops every packet
         on node-1, node-2
         | IPv4: -j DROP
         | -A INPUT
         remedy: delete the rule
warning  conntrack: 91 % full
         on node-1, node-3, other-0, other-1, other-2 and 3 more
         | node-1: 9100 of 10000
         | node-3: 94 % full
         |   9400 of 10000
         | other-0: 95 % full
         |   9500 of 10000
         | other-1: 95 % full
         |   9501 of 10000
         | other-2: 95 % full
         |   9502 of 10000
         | and 3 more; -o wide shows all
         remedy: raise the limit
not checked: clock: EPERM (node-2)
not checked: processes: not visible from here (node-1, node-2, node-3)
9 of 9 nodes responded
`
	if d := cmp.Diff(want, printed(t, r)); d != "" {
		t.Error(d)
	}
	var wide strings.Builder
	if err := Print(&wide, r, inspect.Table{Wide: true}); err != nil || !strings.Contains(wide.String(), "|   9505 of 10000\n") || strings.Contains(wide.String(), " more") {
		t.Errorf("the wide output is incomplete: %v\n%s", err, &wide)
	}
	if f := r.Findings[1]; len(f.Nodes) != 8 || len(f.Evidence) != 8 || f.Evidence[1].Observed[0] != "9400 of 10000" || f.Remedy != "raise the limit" {
		t.Errorf("the report contains %+v", f)
	}
}

func TestStatusKeepsFindings(t *testing.T) {
	document := func(severity, extra string) string {
		return `{"unknown": ["drift"], "findings": [{"severity": "` + severity + `", "subject": "source API server", "problem": "stale",
			"evidence": ["no news for 700 s"], "remedy": "check the API server"}]` + extra + `}`
	}
	r := merge(Question{Command: "status"}, []Answer{
		answer("node-1", document("broken", `, "view": {"node": {"version": "v0.1.0"}}`), 3), answer("node-2", document("warning", ""), 1),
		answer("node-3", `{"view": {"node": {"version": "v0.1.0"}}}`, 0), answer("node-4", "{}", 0),
	}, 0)
	want := `AGENT      VERSION   NODES
not well   v0.1.0    node-1
unknown    -         node-2
well       v0.1.0    node-3
broken   source API server: stale
         on node-1
         | no news for 700 s
         remedy: check the API server
warning  source API server: stale
         on node-2
         | no news for 700 s
         remedy: check the API server
not checked: drift (node-1, node-2)
! node-4: the agent's answer is not the expected document (it contains neither an agent's state nor a finding); check whether the versions differ
3 of 4 nodes responded
`
	if d := cmp.Diff(want, printed(t, r)); d != "" {
		t.Error(d)
	}
}

// TestNotAllNodesIsNotWell: a verdict on the cluster requires all nodes. A list may cover only some nodes.
func TestNotAllNodesIsNotWell(t *testing.T) {
	for command, document := range map[string]string{
		"status": `{"view": {}}`, "doctor": diagnosis("well", ""), "preflight": `{"kind": "FindingList", "items": []}`, "plan": `{"kind": "Plan"}`,
		"services": `{"items": []}`, "version": `{"version": "v0.1.0"}`,
	} {
		for _, c := range []struct {
			notAsked int
			stopped  string
			want     int
		}{{0, "", 0}, {180, "", map[bool]int{true: 1}[commands[command].verdict]}, {180, "interrupted", 1}} {
			m := NewMerger(Question{Command: command}, false)
			m.Add(answer("node-1", document, 0))
			if r := m.Report(c.notAsked, c.stopped); r.ExitStatus != c.want {
				t.Errorf("%s, %d nodes not queried, %q: exit status %d, want %d", command, c.notAsked, c.stopped, r.ExitStatus, c.want)
			}
		}
	}
}

// TestTooLargeAnswers: the report is limited in size and counts omitted statements.
func TestTooLargeAnswers(t *testing.T) {
	var text strings.Builder
	for i := range maxStatements + 7 {
		fmt.Fprintf(&text, "TCP  10.96.0.1:%d rr\n", i)
	}
	document, err := json.Marshal("Prot LocalAddress:Port Scheduler Flags\n" + text.String())
	if err != nil {
		t.Fatal(err)
	}
	r := merge(Question{Command: "ipvsadm"}, []Answer{answer("node-1", string(document), 0)}, 0)
	if len(r.Rows) != maxStatements || r.LeftOut != 7 || r.ExitStatus != 1 || !strings.Contains(printed(t, r), "! the answer is too large; 7 parts are omitted") {
		t.Errorf("got %d rows, %d statements left out, exit status %d", len(r.Rows), r.LeftOut, r.ExitStatus)
	}
}
