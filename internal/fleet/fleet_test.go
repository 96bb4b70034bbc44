package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

func answer(node, document string, exit int) Answer {
	return Answer{Node: node, Document: []byte(document), ExitStatus: &exit}
}

func merge(q Question, answers []Answer, notAsked int) Report {
	m := NewMerger(q, false)
	for _, a := range answers {
		m.Add(a)
	}
	return m.Report(notAsked, "")
}

func service(port, state string, endpoints int, extra string) string {
	var list []string
	for i := range endpoints {
		list = append(list, fmt.Sprintf(`{"address": "10.244.1.%d:80", "state": "Ready"}`, i+1))
	}
	return fmt.Sprintf(`{"agent": true, "items": [{"namespace": "shop", "name": "web", "frontends": [{"port": "http", "kind": "%s", "protocol": "tcp", "scheduler": "rr",
		"state": "%s", "connections": {"active": 2, "inactive": 1}, "endpoints": [%s]%s}]}]}`, port, state, strings.Join(list, ", "), extra)
}

func printed(t *testing.T, r Report) string {
	t.Helper()
	var text strings.Builder
	if err := Print(&text, r, inspect.Table{}); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func TestNodesDisagree(t *testing.T) {
	address := `, "address": "10.96.0.20:80"`
	r := merge(Question{Command: "services", Namespace: "shop"}, []Answer{
		answer("node-3", service("ClusterIP", "NoEndpoints", 0, address), 0),
		answer("node-1", service("ClusterIP", "Served", 2, address), 0),
		answer("node-2", service("ClusterIP", "Served", 2, address), 0),
		{Node: "node-4", Error: "no answer within 30s"},
	}, 40)
	want := `NAMESPACE   NAME   PORT   KIND        ADDRESS            SCHEDULER   ENDPOINTS   STATE         ACTIVE   INACTIVE   NODES
shop        web    http   ClusterIP   10.96.0.20:80/tcp   rr          2/2         Served        4        2          node-1,node-2
shop        web    http   ClusterIP   10.96.0.20:80/tcp   rr          0/0         NoEndpoints   2        1          node-3
! nodes disagree about shop web http ClusterIP 10.96.0.20:80/tcp: rr 0/0 NoEndpoints (node-3); rr 2/2 Served (node-1, node-2)
! node-4: no answer within 30s
! 40 more nodes were not queried; use --all-nodes
3 of 44 nodes responded
`
	want = strings.Replace(want, "ADDRESS            SCH", "ADDRESS             SCH", 1)
	if d := cmp.Diff(want, printed(t, r)); d != "" {
		t.Error(d)
	}
	if r.ExitStatus != 1 {
		t.Errorf("exit status %d, want 1 because a node did not respond", r.ExitStatus)
	}
}

// TestSkippedNodes: nodes without agents are counted, and do not make a verdict incomplete.
func TestSkippedNodes(t *testing.T) {
	windows, virtual := Skipped{"kubernetes.io/os=windows", 1}, Skipped{"type=virtual-kubelet", 2}
	for want, skipped := range map[string][]Skipped{
		"1 node was skipped, because agents do not run there: 1 with the label kubernetes.io/os=windows":                                          {windows},
		"3 nodes were skipped, because agents do not run there: 1 with the label kubernetes.io/os=windows, 2 with the label type=virtual-kubelet": {windows, virtual},
	} {
		m := NewMerger(Question{Command: "preflight"}, false)
		m.Skip(skipped)
		m.Add(answer("node-1", `{"kind": "FindingList", "items": []}`, 0))
		r := m.Report(0, "")
		if notices := r.Notices(false); r.Verdict != Go || notices[0] != want || notices[1] != "1 of 1 nodes responded" {
			t.Errorf("%s: %q", r.Verdict, notices)
		}
	}
}

// TestNodesNotAsked: if some nodes were not queried, a verdict is incomplete, but a list of Services is not.
func TestNodesNotAsked(t *testing.T) {
	for command, c := range map[string]struct {
		document string
		want     int
	}{
		"status": {`{"view": {"node": {"version": "1.0"}}, "unwell": []}`, 1}, "doctor": {`{"verdict": "well", "unchecked": ["clock: boom"]}`, 1},
		"explain": {`{"items": []}`, 1}, "services": {`{"items": []}`, 0}, "conns": {`{"items": []}`, 0},
	} {
		r := merge(Question{Command: command}, []Answer{answer("node-1", c.document, 0)}, 180)
		text := printed(t, r)
		if r.ExitStatus != c.want || !strings.Contains(text, "! 180 more nodes were not queried") || !strings.Contains(text, "1 of 181 nodes responded") {
			t.Errorf("%s: exit status %d, want %d\n%s", command, r.ExitStatus, c.want, text)
		}
		if command == "doctor" && !strings.Contains(text, "not checked: clock: boom") {
			t.Error(text)
		}
		if r := merge(Question{Command: command}, []Answer{answer("node-1", c.document, 0)}, 0); r.ExitStatus != 0 {
			t.Errorf("%s on every node: exit status %d, want 0", command, r.ExitStatus)
		}
	}
}

// TestNodesMayDiffer: node ports have a different address on each node, and Services with policy Local have different
// endpoints.
func TestNodesMayDiffer(t *testing.T) {
	for name, documents := range map[string][2]string{
		"node ports": {
			service("NodePort", "Served", 1, `, "address": "192.168.50.11:30080"`), service("NodePort", "Served", 1, `, "address": "192.168.50.12:30080"`),
		},
		"policy Local": {
			service("ClusterIP", "Served", 1, `, "address": "10.96.0.20:80", "policy": "Local"`),
			service("ClusterIP", "NoLocalEndpoints", 0, `, "address": "10.96.0.20:80", "policy": "Local"`),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := merge(Question{Command: "services"}, []Answer{answer("node-1", documents[0], 0), answer("node-2", documents[1], 0)}, 0)
			if len(r.Disagreements) > 0 || r.ExitStatus != 0 {
				t.Errorf("exit status %d, disagreements %v", r.ExitStatus, r.Disagreements)
			}
		})
	}
}

func TestMissingService(t *testing.T) {
	r := merge(Question{Command: "services"}, []Answer{
		answer("node-1", service("ClusterIP", "Served", 1, `, "address": "10.96.0.20:80"`), 0), answer("node-2", `{"agent": true, "items": []}`, 0),
	}, 0)
	if len(r.Disagreements) != 1 || !strings.Contains(r.Disagreements[0], "missing (node-2)") {
		t.Error(r.Disagreements)
	}
}

// TestWorstNode: the exit status is the worst of all nodes, in the command's order of severity.
func TestWorstNode(t *testing.T) {
	finding := `{"verdict": "%s", "findings": [{"severity": "warning", "subject": "conntrack", "problem": "91 %% full"}]}`
	r := merge(Question{Command: "doctor"}, []Answer{
		answer("node-1", fmt.Sprintf(finding, "warning"), 1), answer("node-2", fmt.Sprintf(finding, "broken"), 2),
		{Node: "node-3", ExitStatus: new(3), Error: "not root"},
	}, 0)
	if r.ExitStatus != 2 {
		t.Errorf("doctor: exit status %d, want 2 (broken)", r.ExitStatus)
	}
	if text := printed(t, r); !strings.Contains(text, "91 % full") || !strings.Contains(text, "all 2") {
		t.Error(text)
	}
	r = merge(Question{Command: "explain"}, []Answer{
		answer("node-1", `{"items": [{"address": "10.96.0.20:80", "protocol": "tcp", "verdict": "passes"}]}`, 0),
		answer("node-2", `{"items": [{"address": "10.96.0.20:80", "protocol": "tcp", "verdict": "stops", "reasons": ["dropped"]}]}`, 3),
	}, 0)
	if r.ExitStatus != 3 || len(r.Disagreements) != 1 {
		t.Errorf("explain: exit status %d, %v", r.ExitStatus, r.Disagreements)
	}
	r = merge(Question{Command: "explain"}, []Answer{
		answer("node-1", `{"items": []}`, 0), answer("node-2", `{"items": [{"verdict": "unclear"}]}`, 4), answer("node-3", `{"items": [{"verdict": "stops"}]}`, 3),
	}, 0)
	if r.ExitStatus != 3 {
		t.Errorf("explain: exit status %d, want 3: an unclear path must not hide a stopped one", r.ExitStatus)
	}
}

// TestHostileAnswers: no answer can make the report fail or send escape sequences to the terminal.
func TestHostileAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		command := rapid.SampledFrom([]string{"services", "conns", "status", "doctor", "explain"}).Draw(t, "command")
		text := rapid.String().Draw(t, "text")
		document := rapid.SampledFrom([]string{
			text, "null", "[]", `{"items": null}`, `{"items": [{"namespace": "\u001b[2J", "name": "\u009b", "verdict": "\u001b]0;x\u0007"}]}`,
			`{"verdict": "\u001b[31m", "unwell": ["\n! node-9: well"]}`,
		}).Draw(t, "document")
		r := merge(Question{Command: command}, []Answer{answer("node-1", document, 0), {Node: "node-2", Error: text}}, 0)
		var out strings.Builder
		if err := Print(&out, r, inspect.Table{Wide: true}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\x07\u009b\r") || strings.Contains(out.String(), "\n! node-9") {
			t.Fatalf("control characters in %q", out.String())
		}
	})
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		q    Question
		want string
	}{
		{Question{Command: "services"}, "kube-ipvs services --output=json"},
		{Question{Command: "services", Namespace: "shop", Name: "web"}, "kube-ipvs services --output=json -- shop/web"},
		{Question{Command: "explain", Namespace: "shop", Name: "10.96.0.10:53/udp"}, "kube-ipvs explain --output=json -- 10.96.0.10:53/udp"},
		{Question{Command: "explain", Name: "[fd00::a]:53"}, "kube-ipvs explain --output=json -- [fd00::a]:53"},
		{Question{Command: "explain", Namespace: "shop", Name: "kube-system/kube-dns:dns"}, "kube-ipvs explain --output=json -- kube-system/kube-dns:dns"},
		{Question{Command: "explain"}, "error: name a Service"},
		{Question{Command: "conns", Name: "web"}, "error: use -n NAMESPACE"},
		{Question{Command: "conns", Namespace: "shop", Name: "web:http"}, "error: not a Service name"},
		{Question{Command: "services", Namespace: "shop", Name: "--status-socket=/x"}, "error: not a Service name"},
		{Question{Command: "doctor", Name: "web"}, "error: takes no Service"},
		{Question{Command: "run"}, "error: unknown command"},
	} {
		line, err := c.q.Line()
		got := strings.Join(line, " ")
		if problem, wanted := strings.CutPrefix(c.want, "error: "); wanted {
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("%+v: %q, %v; want %q", c.q, got, err, problem)
			}
		} else if got != c.want || err != nil {
			t.Errorf("%+v: %q, %v", c.q, got, err)
		}
	}
}

func TestChosenNodes(t *testing.T) {
	var all []string
	for i := range 60 {
		all = append(all, fmt.Sprintf("node-%02d", i))
	}
	chosen, left := Choose(all, map[string]bool{"node-55": true, "node-58": true}, false)
	if len(chosen) != MaxNodes || left != 40 || !slices.Equal(chosen[:3], []string{"node-55", "node-58", "node-00"}) {
		t.Errorf("%v, %d", chosen, left)
	}
	if chosen, left = Choose(all, nil, true); len(chosen) != 60 || left != 0 {
		t.Errorf("all nodes: %d, %d", len(chosen), left)
	}
}
