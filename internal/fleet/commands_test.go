package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

const table = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.20:80 rr persistent 10800
  -> 10.244.1.2:8080              Masq    1      3          0
  -> 10.244.2.2:8080              Masq    1      0          2
UDP  10.96.0.10:53 rr
FWM  1 wrr
`

var commandCases = map[string]struct {
	documents   [2]string
	want, names string
}{
	"ipvsadm": {
		[2]string{table, strings.ReplaceAll(table, "Masq    1      0", "Masq    0      0")},
		`PROTOCOL   ADDRESS         DESTINATION       SCHEDULER             FORWARD   WEIGHT   ACTIVE   INACTIVE   NODES
FWM        1               -                 wrr                   -         -        0        0          all 2
TCP        10.96.0.20:80   10.244.1.2:8080   rr persistent 10800   Masq      1        6        0          all 2
TCP        10.96.0.20:80   10.244.2.2:8080   rr persistent 10800   Masq      0        0        2          node-2
TCP        10.96.0.20:80   10.244.2.2:8080   rr persistent 10800   Masq      1        0        2          node-1
UDP        10.96.0.10:53   -                 rr                    -         -        0        0          all 2
2 of 2 nodes responded
`, "10.96.0.10:53/udp\n10.96.0.20:80/tcp\n",
	},
	"version": {
		[2]string{`{"version": "v0.1.0", "commit": "abc", "go": "go1.26", "platform": "linux/amd64"}`, `{"version": "v0.2.0", "go": "go1.26", "platform": "linux/arm64"}`},
		`VERSION   COMMIT   GO       PLATFORM      NODES
v0.1.0    abc      go1.26   linux/amd64   node-1
v0.2.0    -        go1.26   linux/arm64   node-2
2 of 2 nodes responded
`, "node-1\nnode-2\n",
	},
	"history": {
		[2]string{
			`{"kind": "HistoryList", "items": [{"time": "2026-03-01T12:00:00.5Z", "kind": "incremental", "causes": [{"reason": "services", "objects": {"count": 1, "items": ["shop/web"]}}],
			 "services": {"count": 1, "items": ["shop/web"]}, "operations": [{"added": 2, "removed": 1}]}]}`,
			`{"kind": "HistoryList", "items": [{"time": "2026-03-01T11:59:00Z", "kind": "repair", "drift": {"count": 3, "items": ["kube-ipvs0 is missing"]}, "error": "no device"}]}`,
		},
		`TIME                       KIND          CAUSE               SERVICES   CHANGES   RESULT              NODES
2026-03-01T11:59:00.000Z   repair        drift               -          -         failed: no device   node-2
2026-03-01T12:00:00.500Z   incremental   services shop/web   shop/web   +2 -1     ok                  node-1
2 of 2 nodes responded
`, "node-1\nnode-2\n",
	},
	"plan": {
		[2]string{`{"kind": "Plan", "phases": [{"phase": "sysctls", "operations": ["sysctl -w a=1"]}]}`, `{"kind": "Plan", "phases": []}`},
		`PHASE     OPERATION       NODES
sysctls   sysctl -w a=1   node-1
2 of 2 nodes responded
`, "node-1\n",
	},
	"top": {
		[2]string{
			`{"kind": "TopList", "items": [
				{"namespace": "shop", "name": "api", "kind": "ClusterIP", "address": "10.96.0.1:80", "protocol": "tcp", "connectionsPerSecond": 0.4, "active": 7},
				{"namespace": "shop", "name": "web", "kind": "NodePort", "address": "192.0.2.1:30080", "protocol": "tcp", "connectionsPerSecond": 1.2, "packetsPerSecond": 9, "draining": 1}]}`,
			`{"kind": "TopList", "unknown": ["pods"], "items": [
				{"namespace": "shop", "name": "web", "kind": "NodePort", "address": "192.0.2.2:30080", "protocol": "tcp", "connectionsPerSecond": 3, "bytesInPerSecond": 1e300}]}`,
		},
		`NAMESPACE   NAME   PORT   KIND        ADDRESS            CONN/S   PKT/S   IN/S               OUT/S   ACTIVE   INACTIVE   DRAINING   NODES
shop        web    -      NodePort    :30080/tcp         4        9       1000000000000000   0       0        0          1          all 2
shop        api    -      ClusterIP   10.96.0.1:80/tcp   0        0       0                  0       7        0          0          node-1
not checked: pods (node-2)
2 of 2 nodes responded
`, "shop/api\nshop/web\n",
	},
	"preflight": {
		[2]string{
			`{"kind": "FindingList", "items": [{"severity": "broken", "subject": "module ip_vs", "problem": "missing", "evidence": [], "remedy": "modprobe ip_vs"}]}`,
			`{"kind": "FindingList", "items": [{"severity": "notice", "subject": "rules", "problem": "in nftables", "evidence": [], "remedy": "nothing to do"}]}`,
		},
		`VERDICT   NODES
broken    node-1
well      node-2
broken   module ip_vs: missing
         on node-1
         remedy: modprobe ip_vs
notice   rules: in nftables
         on node-2
         remedy: nothing to do
2 of 2 nodes responded
no-go: kube-ipvs cannot serve on 1 of 2 nodes
`, "node-1\n",
	},
	"cleanup": {
		[2]string{
			`{"kind": "Cleanup", "removed": ["ipvsadm -D -t 10.96.0.1:80"], "failed": [{"operation": "ip link del kube-ipvs0", "error": "busy"}]}`,
			`{"kind": "Cleanup", "toRemove": ["ip link del kube-ipvs0"], "foreignAddresses": ["192.0.2.7"], "refused": "an agent runs"}`,
		},
		`OPERATION                    RESULT          NODES
ip link del kube-ipvs0       failed: busy    node-1
ip link del kube-ipvs0       to be removed   node-2
ipvsadm -D -t 10.96.0.1:80   removed         node-1
warning  cleanup: without --dry-run it would refuse
         on node-2
         | an agent runs
         remedy: resolve the problem shown above
notice   cleanup: other programs' objects are kept
         on node-2
         | 192.0.2.7
         remedy: nothing to do
2 of 2 nodes responded
`, "node-1\nnode-2\n",
	},
}

// TestReadiness: the verdict of preflight is "go" only if every node was checked and has no broken finding.
func TestReadiness(t *testing.T) {
	items := func(severity string) string {
		return fmt.Sprintf(`{"kind": "FindingList", "items": [{"severity": %q, "subject": "s", "problem": "p", "evidence": [], "remedy": "r"}]}`, severity)
	}
	for name, c := range map[string]struct {
		answers  []Answer
		notAsked int
		want     string
	}{
		"well":      {[]Answer{answer("a", `{"kind": "FindingList", "items": []}`, 0), answer("b", items("notice"), 0)}, 0, "go: kube-ipvs can serve on all 2 nodes"},
		"warning":   {[]Answer{answer("a", items("warning"), 0)}, 0, "go: kube-ipvs can serve on this node, with the limits listed in the warnings"},
		"broken":    {[]Answer{answer("a", items("broken"), 1), answer("b", items("notice"), 0)}, 0, "no-go: kube-ipvs cannot serve on 1 of 2 nodes"},
		"silent":    {[]Answer{answer("a", items("notice"), 0), {Node: "b", Error: "no answer"}}, 0, "no-go: only 1 of 2 nodes were checked"},
		"not asked": {[]Answer{answer("a", items("notice"), 0)}, 30, "no-go: only 1 of 31 nodes were checked"},
	} {
		r := merge(Question{Command: "preflight"}, c.answers, c.notAsked)
		verdict, _, _ := strings.Cut(c.want, ":")
		if notices := r.Notices(false); r.Verdict != verdict || notices[len(notices)-1] != c.want || (r.ExitStatus == 0) != (verdict == Go) {
			t.Errorf("%s: verdict %q, exit status %d, %q", name, r.Verdict, r.ExitStatus, notices)
		}
	}
}

func TestCommands(t *testing.T) {
	for command, c := range commandCases {
		q := Question{Command: command}
		var answers []Answer
		for i, document := range c.documents {
			if q.Text() {
				text, _ := json.Marshal(document)
				document = string(text)
			}
			answers = append(answers, answer([]string{"node-1", "node-2"}[i], document, 0))
		}
		r := merge(q, answers, 0)
		if d := cmp.Diff(c.want, printed(t, r)); d != "" {
			t.Errorf("%s: %s", command, d)
		}
		var names strings.Builder
		if err := PrintNames(&names, r); err != nil || names.String() != c.names {
			t.Errorf("%s: names %q, %v", command, &names, err)
		}
		r = merge(q, []Answer{answer("node-1", `{}`, 0), {Node: "node-2", Error: "no answer"}}, 0)
		if r.responded() != 0 || r.ExitStatus != 1 {
			t.Errorf("%s: an empty document was accepted as an answer: %+v", command, r)
		}
	}
}

func TestForms(t *testing.T) {
	var answers []Answer
	for _, node := range strings.Fields("a b c d e f g") {
		answers = append(answers, answer(node, `{"version": "v1"}`, 0))
	}
	r := merge(Question{Command: "version"}, append(answers, answer("h", `{"version": "v2"}`, 0)), 0)
	for _, c := range []struct {
		form inspect.Table
		want string
	}{
		{inspect.Table{NoHeaders: true}, "v1   -   -   -   a,b,c,d,e and 2 more\nv2   -   -   -   h\n"},
		{inspect.Table{NoHeaders: true, Wide: true}, "v1   -   -   -   a,b,c,d,e,f,g\nv2   -   -   -   h\n"},
	} {
		var out strings.Builder
		if err := Print(&out, r, c.form); err != nil || !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("%+v: %v\n%s", c.form, err, &out)
		}
	}
	r = merge(Question{Command: "services"}, []Answer{answer("node-1", service("ClusterIP", "Served", 12, `, "address": "10.96.0.20:80"`), 0),
		answer("node-2", service("ClusterIP", "Served", 2, `, "address": "10.96.0.20:80"`), 0)}, 0)
	var out strings.Builder
	if err := Print(&out, r, inspect.Table{SortBy: "endpoints"}); err != nil || strings.Index(out.String(), "2/2") > strings.Index(out.String(), "12/12") {
		t.Errorf("the rows are not sorted by endpoints: %v\n%s", err, &out)
	}
	if err := (inspect.Table{SortBy: "nope"}).CheckSort(Columns("services")); err == nil || !strings.Contains(err.Error(), "use one of namespace") {
		t.Error(err)
	}
}

// TestPartialAnswers: what a node does not know is neither 0, nor missing, nor silently left out.
func TestPartialAnswers(t *testing.T) {
	const address = `, "address": "10.96.0.20:80"`
	served := service("ClusterIP", "Served", 2, address)
	const unknown = `"unknown": ["connections: the kernel does not answer"], `
	uncounted := strings.Replace(strings.Replace(served, `"connections": {"active": 2, "inactive": 1}, `, "", 1), `"items"`, unknown+`"items"`, 1)
	const withoutAgent = `{"agent": false, "unknown": ["the Service of each virtual server"], "items": [`
	const silent = withoutAgent + `{"frontends": [{"kind": "Unknown", "address": "10.96.0.20:80", "protocol": "tcp"}]}]}`
	const untold = withoutAgent + `{"protocol": "tcp", "client": "10.244.1.9:4000", "virtual": "10.96.0.20:80", "endpoint": "10.244.1.1:80"}]}`
	for name, c := range map[string]struct {
		q         Question
		documents [2]string
		want      []string // lines, with single blanks
	}{
		"not counted on one node": {Question{Command: "services"}, [2]string{served, uncounted}, []string{
			"shop web http ClusterIP 10.96.0.20:80/tcp rr 2/2 Served 2 1 all 2", "not checked: connections: the kernel does not answer (node-2)"}},
		"not counted": {Question{Command: "services"}, [2]string{uncounted, uncounted}, []string{
			"shop web http ClusterIP 10.96.0.20:80/tcp rr 2/2 Served - - all 2", "not checked: connections: the kernel does not answer (all 2)"}},
		"no agent": {Question{Command: "services", Namespace: "shop"}, [2]string{served, silent}, []string{
			"shop web http ClusterIP 10.96.0.20:80/tcp rr 2/2 Served 2 1 node-1", "not checked: the Service of each virtual server (node-2)"}},
		"connections without an agent": {Question{Command: "conns", Namespace: "shop"}, [2]string{`{"agent": true, "items": []}`, untold}, []string{
			"not checked: 1 connections, which may belong to namespace shop or another: no agent responds; use -A to see them (node-2)",
			"not checked: the Service of each virtual server (node-2)"}},
		"no agent, all namespaces": {Question{Command: "services"}, [2]string{served, silent}, []string{
			"- - - Unknown 10.96.0.20:80/tcp - 0/0 - - - node-2",
			"shop web http ClusterIP 10.96.0.20:80/tcp rr 2/2 Served 2 1 node-1", "not checked: the Service of each virtual server (node-2)"}},
	} {
		r := merge(c.q, []Answer{answer("node-1", c.documents[0], 0), answer("node-2", c.documents[1], 0)}, 0)
		var got []string
		for line := range strings.Lines(printed(t, r)) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		if d := cmp.Diff(append(c.want, "2 of 2 nodes responded"), got[1:]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
